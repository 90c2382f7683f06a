"""`evener bench`: scripts on two logical CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

import evener
from evener.cli import app
from evener.errors import RunError

pytestmark = pytest.mark.long

SOURCE = Path(evener.__file__).parents[1]
FIT = """
    import keras
    import numpy as np
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.ones((640, 8)), np.ones((640, 1)), batch_size=16, epochs=3, verbose=0)
    print("the script ended")
"""
LOOP = """
    import keras
    import tensorflow as tf
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables),
                                      model.trainable_variables))
        return loss

    for batch in tf.data.Dataset.from_tensor_slices(tf.ones([1600, 8])).batch(16):
        step(batch)
"""


def bench(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(textwrap.dedent(script), encoding="utf-8")
    words = ["bench", "--devices", "cpu:2", "--rounds", "1", "--steps", "10", "--json"]
    return subprocess.run(
        [sys.executable, "-m", "evener", *words, *options, "train.py"],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "-1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_a_fit_is_measured_under_every_layout(tmp_path: Path) -> None:
    done = bench(tmp_path, FIT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["name"].partition(":")[0] for row in found["rows"]][1:] == [
        "MirroredStrategy",
        "evener, even shares",
        "evener, measured shares",
        "evener, planned",
    ]
    assert all(0 < row["step_seconds"] < 10 for row in found["rows"]), found
    assert {row["batch_size"] for row in found["rows"]} == {16}
    assert found["limit"]
    assert (Path(found["record"]) / "steps.jsonl").exists()


def test_a_loop_of_its_own_is_measured_by_what_evener_counts(tmp_path: Path) -> None:
    found = json.loads(bench(tmp_path, LOOP).stdout)
    problems = {row["name"]: row["problem"] for row in found["rows"]}
    # It is written for one device.
    assert "does not run under it: ValueError" in problems.pop("MirroredStrategy")
    assert not any(problems.values()), problems


def test_a_function_that_does_not_train_is_no_step(tmp_path: Path) -> None:
    """An evaluation before the training, longer than the steps to time, is not taken for it."""
    lines = """
        import sys
        import keras, tensorflow as tf
        from evener.run.bench_child import time_calls
        seconds = []
        time_calls(seconds, 1000, print)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01)

        @tf.function
        def evaluate(x):
            return tf.reduce_mean(model(x) ** 2)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables),
                                          model.trainable_variables))
            return loss

        x = tf.ones([4, 8])
        for _ in range(30):
            evaluate(x)
        assert not seconds
        for _ in range(5):
            step(x)
            evaluate(x)
        assert len(seconds) == 4, seconds
        print("the script ended")
    """
    path = tmp_path / "loop.py"
    path.write_text(textwrap.dedent(lines), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "the script ended" in done.stdout, done.stderr


def test_a_script_that_fails_is_told(tmp_path: Path) -> None:
    done = bench(tmp_path, "raise ZeroDivisionError('at once')")
    assert done.returncode == 1
    assert "RUN-109" in done.stderr
    assert "ZeroDivisionError: at once" in done.stderr


def test_one_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = CliRunner().invoke(app, ["bench", "--devices", "cpu:1", str(tmp_path / "train.py")])
    assert isinstance(done.exception, RunError)
    assert done.exception.code == "RUN-108"
