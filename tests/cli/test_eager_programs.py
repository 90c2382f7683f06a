"""Commands that ask for the first training step stop there, also where nobody traced it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from cli.forked import Run
from evener.base.records import to_json
from evener.run.first_step import Answer, ProcessResult, StepRequest, _fix, answer_file
from evener.run.script import read_script

MADE = """
    import keras
    import numpy as np
    import tensorflow as tf
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD()
    x = np.ones((64, 8), "float32")
"""
STEP = """
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x)){}
        gradients = tape.gradient(loss, model.trainable_variables)
        {}
    for _ in range(4):
        step(tf.constant(x))
        open("steps", "a").write("1")
"""
APPLIED = "optimizer.apply_gradients(zip(gradients, model.trainable_variables))"
BY_HAND = "[v.assign_sub(g) for v, g in zip(model.trainable_variables, gradients)]"
NEEDS_A_NUMBER = """
            if float(loss) > 1e9:
                raise ValueError"""
FIT = """
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(x, x[:, :1], batch_size=16, verbose=0)
    open("steps", "a").write("1")
"""


def answer_to(source: str, run_forked: Run, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "train.py").write_text(textwrap.dedent(source), encoding="utf-8")
    script = read_script(str(tmp_path / "train.py"))
    request = StepRequest(question="memory", target="train.py", script=script, devices="cpu:1")
    file = tmp_path / "request.json"
    file.write_text(to_json(request), encoding="utf-8")
    done = run_forked("child", str(file))
    assert done.returncode == 0, done.stderr
    return json.loads(answer_file(file).read_text(encoding="utf-8"))


def test_a_step_that_becomes_a_function_runs_once_and_that_is_said(
    run_forked: Run, tmp_path: Path
) -> None:
    source = MADE + STEP.format("", APPLIED)
    answer = answer_to(source, run_forked, tmp_path)
    assert answer["outcome"] == "found"
    assert answer["traced"]["batch_size"] == 64
    assert answer["notes"] == [
        "evener: train.py:12: this step ran once, since it is no tf.function"
    ]
    assert (tmp_path / "steps").read_text() == "1"


@pytest.mark.parametrize("update", [APPLIED, BY_HAND])
def test_a_step_that_stays_eager_runs_once(update: str, run_forked: Run, tmp_path: Path) -> None:
    source = MADE + STEP.format(NEEDS_A_NUMBER, update)
    answer = answer_to(source, run_forked, tmp_path)
    assert (answer["outcome"], answer["line"]) == ("eager", "train.py:14")
    assert (tmp_path / "steps").read_text() == "1"


def test_an_eager_fit_stops_before_its_first_update(run_forked: Run, tmp_path: Path) -> None:
    answer = answer_to(MADE + FIT, run_forked, tmp_path)
    assert (answer["outcome"], answer["line"]) == ("eager", "train.py:10")
    assert not (tmp_path / "steps").exists()


def test_what_is_said_of_an_eager_program() -> None:
    ended = ProcessResult(exit_code=0, output="")
    answer = Answer(process=ended, outcome="eager", line="train.py:12")
    assert answer.why_no_step(9).startswith("It trains eagerly at train.py:12")
    assert "@tf.function" in _fix(answer)
    assert "@tf.function" not in _fix(Answer(process=ended, outcome="ended"))


def test_a_model_that_xla_compiles_is_counted(run_forked: Run, tmp_path: Path) -> None:
    source = MADE + FIT.replace("run_eagerly=True", "jit_compile=True")
    answer = answer_to(source, run_forked, tmp_path)
    assert answer["outcome"] == "found"
    assert answer["traced"]["batch_size"] == 16
    assert not (tmp_path / "steps").exists()
