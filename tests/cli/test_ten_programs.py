"""Programs as people post them when only one GPU is used, each with one mistake of its own.

Under `evener run` each trains right on all devices, or stops with an error that names the line.

What is right: the weights of the same program on one device, with TensorFlow's default strategy
in the place of the one that it makes. On one device none of the mistakes of these programs
changes anything, so that no other version of them is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import evener

TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "programs"
SOURCE = Path(evener.__file__).parents[1]

# With what is said about the mistake, and the line that it is said of.
RIGHT = {
    "arrays_into_run": ("ENG-060", "per_replica = strategy.run(train_step, args=(x, y))"),
    "batch_that_does_not_divide": None,
    "loss_not_scaled": ("ENG-066", "grads = tape.gradient(loss, model.trainable_variables)"),
    "model_outside_the_scope": None,
    "optimizer_made_late": None,
    "strategy_after_the_model": None,
}
STOPPED = {
    "layers_made_on_every_call": ("RUN-009", 'x = layers.Conv2D(4, 3, activation="relu")(inputs)'),
    "no_strategy_run": ("RUN-006", "loss = train_step(x_batch, y_batch)"),
    "shards_looped_around_run": ("RUN-007", "losses.append(strategy.run(step, args=(xs, ys)))"),
    "tf_device_with_a_physical_name": ("RUN-008", "with tf.device(gpu.name):"),
}


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    own = {
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forks.py"))],
        env={**os.environ, **own},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.communicate()


@pytest.fixture
def run(forks: subprocess.Popen[str], tmp_path: Path) -> Run:
    def run(kind: str, *args: str) -> Done:
        files = {name: tmp_path / f"{kind} {name}" for name in ("stdout", "stderr")}
        asked = {"kind": kind, "args": args, "folder": str(tmp_path)}
        print(json.dumps({**asked, **files}, default=str), file=forks.stdin, flush=True)
        code = int(forks.stdout.readline())
        return Done(code, *(file.read_text(encoding="utf-8") for file in files.values()))

    return run


# Another share than even, so that what a replica scales wrong is seen.
UNEVEN = ("run", "--devices", "cpu:2", "--shares", "3,1", "--json")


def number_of(text: str, program: Path) -> int:
    """Return the number of the one line of a program that this is."""
    lines = [line.strip() for line in program.read_text(encoding="utf-8").splitlines()]
    assert lines.count(text) == 1
    return lines.index(text) + 1


def said_by(done: Done) -> list[str]:
    """Return the lines on standard error before the report."""
    return done.stderr.splitlines()[:-1]


def test_there_are_ten() -> None:
    assert sorted(path.stem for path in PROGRAMS.glob("*.py")) == sorted(RIGHT | STOPPED)
    assert len(RIGHT | STOPPED) == 10


@pytest.mark.parametrize("name", RIGHT)
def test_it_trains_right_on_all_devices(name: str, run: Run, tmp_path: Path) -> None:
    program = PROGRAMS / f"{name}.py"
    expected = run("one device", str(program), "expected.npz")
    assert expected.returncode == 0, expected.stderr
    done = run("evener", *UNEVEN, str(program), "weights.npz")
    assert done.returncode == 0, done.stderr

    with np.load(tmp_path / "expected.npz") as one, np.load(tmp_path / "weights.npz") as all_:
        assert one.files == all_.files
        for key in one.files:
            np.testing.assert_allclose(all_[key], one[key], rtol=0, atol=1e-5)
    products = json.loads((tmp_path / "operations.json").read_text(encoding="utf-8"))
    assert set(products) == {"CPU:0", "CPU:1"}, products
    report = json.loads(done.stderr.splitlines()[-1])
    assert [one["share"] for one in report["devices"]] == [0.75, 0.25]

    warnings = [line for line in said_by(done) if line.startswith("Warning: [")]
    if RIGHT[name] is None:
        assert not warnings
    else:
        code, text = RIGHT[name]
        (warning,) = warnings
        assert warning.startswith(f"Warning: [{code}] ")
        assert f" At: {program}:{number_of(text, program)} Fix: " in warning


@pytest.mark.parametrize("name", STOPPED)
def test_it_stops_with_an_error_that_names_the_line(name: str, run: Run, tmp_path: Path) -> None:
    program = PROGRAMS / f"{name}.py"
    code, text = STOPPED[name]
    line = number_of(text, program)
    done = run("evener", *UNEVEN, str(program), "weights.npz")
    assert done.returncode == 1
    assert not (tmp_path / "weights.npz").exists()
    said = [one for one in said_by(done) if not one.startswith("evener: ")]
    assert said[0].startswith(f"[{code}] {program}:{line}: "), done.stderr
    assert said[1].startswith("Why: ")
    assert said[2].startswith("Fix: ")
    assert said[-1].startswith(f'  File "{program}", line {line}')
    assert "Traceback" not in done.stderr


def test_the_lines_of_the_fix_are_those_of_the_program(run: Run, tmp_path: Path) -> None:
    source = (PROGRAMS / "no_strategy_run.py").read_text(encoding="utf-8")
    assert run("one device", str(PROGRAMS / "no_strategy_run.py"), "expected.npz").returncode == 0
    for old, new in (
        (
            "\n\n@tf.function",
            "\ntrain_dataset = strategy.experimental_distribute_dataset(train_dataset)"
            "\n\n@tf.function",
        ),
        (
            "loss = train_step(x_batch, y_batch)",
            "loss = strategy.run(train_step, args=(x_batch, y_batch))\n"
            "        loss = strategy.reduce('SUM', loss, axis=None)",
        ),
    ):
        assert old in source
        source = source.replace(old, new)
    (tmp_path / "mended.py").write_text(source, encoding="utf-8")
    done = run("evener", *UNEVEN, "mended.py", "weights.npz")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "expected.npz") as one, np.load(tmp_path / "weights.npz") as all_:
        for key in one.files:
            np.testing.assert_allclose(all_[key], one[key], rtol=0, atol=1e-5)


def test_batches_of_a_distributed_dataset_outside_of_run(run: Run, tmp_path: Path) -> None:
    source = (PROGRAMS / "no_strategy_run.py").read_text(encoding="utf-8")
    source = source.replace(
        "in train_dataset:", "in strategy.experimental_distribute_dataset(train_dataset):"
    )
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    done = run("evener", *UNEVEN, "train.py", "weights.npz")
    assert done.returncode == 1
    line = number_of("loss = train_step(x_batch, y_batch)", tmp_path / "train.py")
    said = said_by(done)
    assert any(one.startswith("Traceback ") for one in said)
    assert said[-3].startswith(f"[RUN-010] train.py:{line}: a value per replica was used as one")
    assert [one[:5] for one in said[-2:]] == ["Why: ", "Fix: "]


INNOCENT = """
    from collections import deque
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy()
    BATCH = 4 * strategy.num_replicas_in_sync
    outside = [keras.layers.Dense(4), keras.layers.Dense(4)]

    class Block(keras.layers.Layer):
        def build(self, shape):
            self.inner = deque(keras.layers.Dense(4) for _ in range(2))
        def call(self, x):
            for layer in [*outside, *self.inner]:
                x = layer(x)
            return keras.layers.Flatten()(keras.layers.ReLU()(x))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_sum(model(x) ** 2, 1))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Block(), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam()
    variables = model.trainable_variables
    optimizer.apply_gradients([(tf.zeros_like(v), v) for v in variables])
    x = np.ones((8, 4), "float32")
    with tf.device("/CPU:0"):
        for batch in tf.data.Dataset.from_tensor_slices(x).batch(BATCH):
            strategy.run(tf.function(step), args=(batch,))
    for epoch in range(2):
        for half in np.split(x, 2):
            strategy.run(tf.function(step), args=(half,))
    class Small(keras.Model):
        def call(self, x):
            return x
    print(len(model.get_weights()), Small(name="own").get_config()["name"])
    raise ValueError("its own error")
"""


def test_what_only_looks_like_a_mistake_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(INNOCENT), encoding="utf-8")
    done = run("evener", *UNEVEN, "train.py")
    assert "RUN-" not in done.stderr
    assert "custom loop" not in done.stderr
    assert said_by(done)[-1] == "ValueError: its own error"
    assert done.stdout == "2 own\n"
