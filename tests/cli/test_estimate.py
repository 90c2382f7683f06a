from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from cli.commands import run
from cli.forked import Run

BATCH_SIZE = 256

SCRIPT = """
    import sys
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    blocks = []
    for k, filters in enumerate((16, 32, 64)):
        blocks += [
            keras.layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"conv_{k}"),
            keras.layers.MaxPooling2D(name=f"pool_{k}"),
        ]
    dense = [keras.layers.Dense(1024, activation="relu", name=f"dense_{k}") for k in range(2)]
    model = keras.Sequential(
        [keras.Input((32, 32, 3)), *blocks, keras.layers.Flatten(), *dense, keras.layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.ones((256, 32, 32, 3), "float32"), np.zeros(256, "int32")
    if "no-step" in sys.argv:
        raise SystemExit(3)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    if "sizes-unknown" in sys.argv:
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(256).repeat()
    model.fit(data, steps_per_epoch=2, verbose=0)
    open("trained", "w").close()
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(data, steps_per_epoch=2, verbose=0)
    print("peak", tf.config.experimental.get_memory_info("CPU:0")["peak"])
"""

CLIPS = """
    import sys
    import keras
    import numpy as np

    clips = {"global_clipnorm": 1.0} if sys.argv[1] == "clip" else {}
    model = keras.Sequential([keras.Input((64,)), *(keras.layers.Dense(64) for _ in range(4))])
    model.compile(keras.optimizers.SGD(**clips), "mse")
    model.fit(np.ones((8, 64), "float32"), np.ones((8, 64), "float32"), batch_size=8, verbose=0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    return tmp_path


@pytest.mark.long
def test_a_script_needs_what_tensorflow_allocates(folder: Path) -> None:
    """The estimate is beside the peak of plain Keras, counted by the allocator that GPUs have."""
    found = run("estimate", "--json", "train.py", folder=folder)
    assert found.returncode == 0, found.stderr
    assert not (folder / "trained").exists()
    answer = json.loads(found.stdout)
    assert (answer["model"], answer["batch_size"]) == ("train.py", BATCH_SIZE)
    # With one thread the order of operations, and so the peak, does not depend on the load.
    trained = run(
        "train.py",
        folder=folder,
        program=("-W", "ignore"),
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_NUM_INTEROP_THREADS="1",
    )
    assert trained.returncode == 0, trained.stderr
    (peak,) = map(int, re.findall(r"^peak (\d+)$", trained.stdout, re.MULTILINE))
    assert answer["memory"][0]["total_bytes"] == pytest.approx(peak, rel=0.15)


def test_a_published_model_needs_no_tensorflow(command: Run) -> None:
    done = command("estimate", "--batch-size", "32", "bert-large")
    assert done.returncode == 0
    assert not done.imported & {"tensorflow", "keras", "numpy"}
    assert "Memory of bert-large-512 on one device, a step of 32 samples" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["weights", *["1.3", "GiB"] * 4] in rows
    assert ["24", "GB", "23.0", "GiB", "20", "253"] in [row[:6] for row in rows]


def test_devices_divide_weights_and_the_batch(command: Run) -> None:
    words = ("estimate", "--batch-size", "32", "--json")
    single, shared = (
        json.loads(command(*words, *more, "bert-large").stdout)["memory"][0]
        for more in ((), ("--num-devices", "4"))
    )
    assert shared["activations_bytes"] == pytest.approx(single["activations_bytes"] / 4)
    assert shared["optimizer_state_bytes"] < single["optimizer_state_bytes"] / 2
    assert single["fetched_bytes"] == 0 < shared["fetched_bytes"]


@pytest.mark.long
def test_no_training_step(folder: Path) -> None:
    found = run("estimate", "train.py", "--", "no-step", folder=folder)
    assert found.returncode == 1
    assert "[RUN-040]" in found.stderr
    assert "it ended with exit code 3" in found.stderr


@pytest.mark.long
def test_the_first_batch_says_what_the_data_does_not(folder: Path) -> None:
    found = run("estimate", "train.py", "--", "sizes-unknown", folder=folder)
    assert found.returncode == 0, found.stderr
    assert "a step of 256 samples" in found.stdout
    found = run(*"estimate --batch-size 64 train.py -- sizes-unknown".split(), folder=folder)
    assert found.returncode == 0, found.stderr
    assert "a step of 64 samples" in found.stdout


@pytest.mark.long
def test_gradients_that_wait_for_their_norm_are_counted(tmp_path: Path) -> None:
    script = tmp_path / "clips.py"
    script.write_text(textwrap.dedent(CLIPS), encoding="utf-8")
    gradients = {}
    for word in ("clip", "update"):
        words = ("estimate", "--json", "--num-devices", "2", script.name, word)
        found = run(*words, folder=tmp_path)
        assert found.returncode == 0, found.stderr
        gradients[word] = json.loads(found.stdout)["memory"][0]["gradients_bytes"]
    layer = 64 * 65 * 4
    # Four layers, two of them on each device: both devices' gradients of those, or of one of them.
    assert gradients == {"clip": 4 * layer, "update": 3 * layer}


@pytest.mark.long
def test_a_model_that_no_machine_holds_is_counted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import keras
            import numpy as np

            size = 65_536
            model = keras.Sequential([keras.Input((size,)), *map(keras.layers.Dense, [size] * 24)])
            model.compile("adam", "mse")
            x = np.zeros((8, size), "float32")
            model.fit(x, x, batch_size=8, verbose=0)
        """)
    )
    found = run("estimate", "--json", "train.py", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    [whole, *_] = json.loads(found.stdout)["memory"]
    weights = 24 * (65_536 * 65_536 + 65_536) * 4
    assert whole["weights_bytes"] == weights
    assert whole["optimizer_state_bytes"] >= 2 * weights
