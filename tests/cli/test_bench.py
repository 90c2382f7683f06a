from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.commands import run
from evener.cli import app
from evener.errors import PlanError, RunError
from evener.run import bench as benchmark
from evener.run import first_step
from evener.run.bench import BenchRow, Contender

pytestmark = pytest.mark.long

FIT = """
    import keras
    import numpy as np
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.ones((640, 8)), np.ones((640, 1)), batch_size=16, epochs=3, verbose=0)
    print("the script ended")
"""


STEP = """
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
"""
LOOP = f"""{STEP}
    for batch in tf.data.Dataset.from_tensor_slices(tf.ones([1600, 8])).batch(16):
        step(batch)
"""
EVALUATED = f"""
    import keras
    from evener.run.bench_child import time_calls
    seconds = []
    time_calls(seconds, 1000, print)
    {STEP}
    @tf.function
    def evaluate(x):
        return tf.reduce_mean(model(x) ** 2)

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


def bench(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(textwrap.dedent(script), encoding="utf-8")
    words = ["bench", "--devices", "cpu:2", "--rounds", "1", "--steps", "10", "--json"]
    return run(*words, *options, "train.py", folder=folder, timeout=560)


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
    (tmp_path / "loop.py").write_text(textwrap.dedent(EVALUATED), encoding="utf-8")
    done = run("loop.py", program=(), folder=tmp_path)
    assert "the script ended" in done.stdout, done.stderr


def test_a_script_that_fails_is_told(tmp_path: Path) -> None:
    done = bench(tmp_path, "raise ZeroDivisionError('at once')")
    assert done.returncode == 1
    assert "RUN-113" in done.stderr
    assert done.stderr.count("ZeroDivisionError: at once") == 1
    assert "round 1 of 1: MirroredStrategy" not in done.stderr


def test_one_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = CliRunner().invoke(app, ["bench", "--devices", "cpu:1", str(tmp_path / "train.py")])
    assert isinstance(done.exception, RunError)
    assert done.exception.code == "RUN-108"


def test_a_script_without_a_step_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: Any, **__: Any) -> None:
        raise PlanError("PLAN-900", "There is no step.", why="It ended.", fix="Train.")

    rows = [BenchRow(contender=Contender(name="alone"), problem="no step was timed")]
    monkeypatch.setattr(first_step, "plan_script", plan)
    monkeypatch.setattr(benchmark, "measure", lambda *_, **__: rows)
    (tmp_path / "train.py").write_text("")
    done = CliRunner().invoke(app, ["bench", "--devices", "cpu:2", str(tmp_path / "train.py")])
    assert isinstance(done.exception, RunError)
    assert (done.exception.code, done.exception.why) == ("RUN-109", "alone: no step was timed.")
    assert f"evener run {tmp_path / 'train.py'}." in done.exception.fix
