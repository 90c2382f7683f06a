"""Programs for GPUs on a machine without: they run, and train what they train on one device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.commands import run
from cli.forked import UNEVEN, Done, Run

PROGRAMS = Path(__file__).parents[1] / "programs" / "gpus"
PLAIN = PROGRAMS / "plain.py"
NAMES = "cpu:0 and cpu:1 appear as GPU:0 and GPU:1"
# What each prints on two stand-ins.
PRINTED = {
    "batch_by_gpus": ["64"],
    "details_of_the_first": ["stand-in cpu:0 True", "8.0", "True"],
    "error_without_gpus": ["Num GPUs available: 2"],
    "exit_without_gpus": ["/physical_device:GPU:1"],
    "is_gpu_available": ["/device:GPU:0 ['/device:GPU:0', '/device:GPU:1']"],
    "logical_devices": ["2 Physical GPUs, 3 Logical GPUs", "CPU:0", "CPU:0", "CPU:1"],
    "memory_growth": ["2 Physical GPUs, 2 Logical GPUs", "[True, True]"],
    "mirrored_over_list": ["['/device:GPU:0', '/device:GPU:1']"],
    "placed_by_hand": ["['CPU:0', 'CPU:0', 'CPU:1', 'CPU:1']"],
    "visible_last": ["2 Physical GPUs, 1 Logical GPU", "CPU:1"],
}
# What is said of the choices that evener does not follow on stand-ins.
SAID = {
    "logical_devices": "of GPU:0: its 2 logical devices run on cpu:0, and memory_limit has no",
    "visible_last": "tf.config lists GPU:1 from here on, but evener still trains on cpu:0, cpu:1",
}

# The rest: logical devices, memory growth, work placed by hand, and a GPU that is left out.
LONG = {
    "batch_by_gpus",
    "details_of_the_first",
    "error_without_gpus",
    "exit_without_gpus",
    "is_gpu_available",
    "mirrored_over_list",
}


def notes_of(done: Done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["notes"]


def test_every_program_is_here() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {*PRINTED, PLAIN.stem}


@pytest.fixture(scope="module")
def trained() -> dict[str, dict[str, np.ndarray]]:
    """Weights that one device has trained, by the size of the batch."""
    return {}


def weights_of_one_device(
    batch_size: str, trained: dict[str, dict[str, np.ndarray]], run_forked: Run, folder: Path
) -> dict[str, np.ndarray]:
    if batch_size not in trained:
        done = run_forked("one device", str(PLAIN), "expected.npz", batch_size)
        assert done.returncode == 0, done.stderr
        with np.load(folder / "expected.npz") as weights:
            trained[batch_size] = dict(weights)
    return trained[batch_size]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in LONG else ())
        for name in sorted(PRINTED)
    ],
)
def test_it_trains_what_it_trains_on_one_device(
    name: str, run_forked: Run, tmp_path: Path, trained: dict[str, dict[str, np.ndarray]]
) -> None:
    program = PROGRAMS / f"{name}.py"
    batch_size = "64" if name == "batch_by_gpus" else "32"
    expected = weights_of_one_device(batch_size, trained, run_forked, tmp_path)
    done = run_forked("evener", *UNEVEN, str(program), "weights.npz")
    notes = notes_of(done)
    assert done.stdout.splitlines()[:-1] == PRINTED[name]
    assert sum("--no-gpu-names" in note for note in notes) == 1
    assert f": no GPU was found: {NAMES}; " in notes[0]
    assert any(SAID.get(name, "") in note for note in notes)
    assert name in SAID or not any("set_" in note for note in notes)
    with np.load(tmp_path / "weights.npz") as weights:
        assert weights.files == list(expected)
        for key in expected:
            np.testing.assert_allclose(weights[key], expected[key], rtol=0, atol=1e-6)
    products = json.loads((tmp_path / "operations.json").read_text(encoding="utf-8"))
    assert set(products) == {"CPU:0", "CPU:1"}, products


@pytest.mark.long
def test_the_report_says_where_a_program_placed_by_hand_is(run_forked: Run) -> None:
    done = run_forked("evener", *UNEVEN, str(PROGRAMS / "placed_by_hand.py"), "weights.npz")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    found = {
        device["device"]: (device["share"], device["owned"]["num_bytes"])
        for device in report["devices"]
    }
    # 16 * 8 + 16 and 16 + 1 floats; what belongs to no layer is on the first.
    small = found["cpu:0"][1] - 4 * 144
    assert found == {"cpu:0": (0.75, 4 * 144 + small), "cpu:1": (0.25, 4 * 17)}
    assert 0 <= small < 40


@pytest.mark.parametrize(("option", "num_gpus"), [((), 1), (("--devices", "cpu:3"), 3)])
def test_there_are_as_many_as_stand_ins(
    option: tuple[str, ...], num_gpus: int, run_forked: Run, tmp_path: Path
) -> None:
    (tmp_path / "count.py").write_text(
        "import tensorflow as tf\nprint(len(tf.config.list_physical_devices('GPU')))\n",
        encoding="utf-8",
    )
    done = run_forked("evener", "run", *option, "count.py")
    assert (done.returncode, done.stdout) == (0, f"{num_gpus}\n"), done.stderr
    assert ("cpu:0 appears as GPU:0;" in done.stderr) == (num_gpus == 1)


ANSWERS = """
import sys
import keras
import tensorflow as tf
def said(function):
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
@tf.function
def traced():
    return len(tf.config.list_physical_devices("GPU"))
config = tf.config.experimental
print(said(lambda: [len(config.list_physical_devices("GPU")), int(traced())]))
print([one.name for one in tf.config.list_physical_devices()])
print([one.name for one in tf.config.list_logical_devices()])
print(tf.config.list_physical_devices("gpu"), tf.config.list_logical_devices("TPU"))
import tensorflow.compat.v1 as tf1
with tf1.device("/gpu:1"):
    print(tf1.ones(()).device[-5:])
# Keras chooses cuDNN's kernels by the same question.
print(keras.distribution.list_devices())
print(said(lambda: config.get_memory_info("GPU:7")))
gpu = tf.config.PhysicalDevice("/physical_device:GPU:7", "GPU")
print(said(lambda: tf.config.set_visible_devices(gpu, "GPU")))
print(said(lambda: config.set_memory_growth(gpu, True)))
tf.config.set_visible_devices([], "GPU")
print(tf.config.list_logical_devices("GPU"), tf.config.get_visible_devices("GPU"))
print(tf.test.is_gpu_available(), repr(tf.test.gpu_device_name()))
"""
ANSWERED = """\
[2, 2]
['/physical_device:CPU:0', '/physical_device:GPU:0', '/physical_device:GPU:1']
['/device:CPU:0', '/device:CPU:1', '/device:GPU:0', '/device:GPU:1']
[] []
CPU:1
['cpu:0', 'cpu:1']
ValueError: No matching devices found for 'GPU:7'
ValueError: Unrecognized device: PhysicalDevice(name='/physical_device:GPU:7', device_type='GPU')
ValueError: Unrecognized device: PhysicalDevice(name='/physical_device:GPU:7', device_type='GPU')
[] []
False ''
"""


def test_answers_are_those_of_a_machine_with_so_many_gpus(run_forked: Run, tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(ANSWERS, encoding="utf-8")
    done = run_forked("evener", "run", "--devices", "cpu:2", "ask.py")
    assert done.stdout == ANSWERED, done.stderr


def test_without_the_names_there_is_no_gpu(run_forked: Run) -> None:
    program = str(PROGRAMS / "exit_without_gpus.py")
    done = run_forked("evener", "run", "--devices", "cpu:2", "--no-gpu-names", program)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "no GPU\n")


@pytest.mark.long
def test_an_audit_knows_the_names_or_has_none(tmp_path: Path) -> None:
    """`MirroredStrategy` is TensorFlow's own there, on the stand-ins."""
    words = ("audit", "--devices", "cpu:2")
    program = str(PROGRAMS / "mirrored_over_list.py")
    done = run(*words, "--json", program, "w.npz", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f": no GPU was found: {NAMES}; ") == done.stderr.count("\n") == 1
    operations = json.loads(done.stdout)["operations"]
    of_gradients = {each["device"] for each in operations if each["kind"] == "gradient"}
    assert of_gradients == {"cpu:0", "cpu:1"}
    done = run(*words, "--no-gpu-names", program, folder=tmp_path, COLUMNS="200")
    assert done.returncode == 1
    assert "one GPU is not enough" in done.stderr


GUIDE = """
import tensorflow as tf
from tensorflow.config import list_physical_devices
gpus = list_physical_devices("GPU")
assert len(gpus) == 2, "two GPUs are needed"
tf.config.set_visible_devices(gpus, "GPU")
strategy = tf.distribute.MirroredStrategy()
assert strategy.extended.worker_devices[1].endswith("CPU:1")
one = tf.distribute.OneDeviceStrategy("/gpu:1")
assert one.extended.worker_devices[0].endswith("CPU:1")
tf.constant(1.0)
try:
    tf.config.set_visible_devices(gpus[0], "GPU")
except RuntimeError as error:
    assert "cannot be modified after being initialized" in str(error)
else:
    raise AssertionError("a machine with GPUs would refuse this")
import keras
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.ones((1024, 4)), tf.ones((1024, 1)), batch_size=64, epochs=40, verbose=0)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "outcome", "said"),
    [
        ((), "enough", f"evener: train.py:4: no GPU was found: {NAMES}; "
         "--no-gpu-names turns this off\n"),
        (("--no-gpu-names",), "crashed", ""),
    ],
    ids=["with the names", "without"],
)  # fmt: skip
def test_the_doctor_watches_it(
    options: tuple[str, ...], outcome: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(GUIDE, encoding="utf-8")
    words = ("doctor", "--steps", "3", "--devices", "cpu:2", "--json", *options)
    done = run(*words, "train.py", folder=tmp_path)
    assert json.loads(done.stdout)["run"]["outcome"] == outcome, done.stdout
    assert ("two GPUs are needed" in done.stdout) == (outcome == "crashed")
    assert done.stderr == said
