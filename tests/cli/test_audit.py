"""`evener audit`, as a person would call it: few processes, each told to do much."""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import evener
from cli.commands import SOURCE, run
from evener.base.records import to_plain
from evener.errors import EvenerError
from evener.run import first_step
from evener.run.child import FirstStep, call_step
from evener.run.first_step import (
    Answer,
    ProcessResult,
    TargetError,
    answer_file,
    audit_in_subprocess,
    audit_request,
    read_target,
    run_child_process,
)

SCRIPT = """
    import atexit, sys
    import keras
    import numpy as np
    import tensorflow as tf
    atexit.register(lambda: open("ended", "w").close())
    if "crash" in sys.argv:
        raise ValueError("no data here")
    print("x" * 2_000_000)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly="eager" in sys.argv)
    x = np.ones((100, 8), "float32")
    model.predict(x, verbose=0)
    model.fit(x, x[:, :1], batch_size=32, verbose=0)
    open("trained", "w").close()
"""

STEPS = """
    import tensorflow as tf
    with tf.device("/cpu:1"):
        weights = tf.Variable(tf.ones([64, 64]))

    @tf.function(input_signature=[tf.TensorSpec([None, 64])])
    def step(x):
        with tf.GradientTape() as tape:
            with tf.device("/GPU:0"):
                y = tf.cast(tf.sin(x @ weights), tf.int32)
                y = tf.cast(tf.matmul(y, y, transpose_a=True), tf.float32)
            loss = tf.reduce_sum(x @ weights)
        weights.assign_sub(tape.gradient(loss, weights))
        return loss, y

    def pair():
        return step.python_function, (tf.ones([8, 64]),)

    def trains():
        step(tf.ones([4, 64]))
        raise AssertionError("it has trained")

    def needs(x, y):
        return x + y

    @tf.function
    def open_step(x):
        return x

    def eagerly():
        import keras
        variable = keras.Variable(1.0)
        keras.optimizers.SGD().apply([tf.constant(1.0)], [variable])
        raise AssertionError("it has trained")

    def by_hand(steps=3):
        variable = tf.Variable(1.0)
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = variable * variable
            gradient = tape.gradient(loss, variable)
            if steps > 2:
                assert float(variable) == 1.0, "it has trained"
            variable.assign_sub(0.1 * gradient)

    def by_hand_once():
        by_hand(1)

    def only_looks():
        variable = tf.Variable(1.0)
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = variable * variable
            tape.gradient(loss, variable)
        step(tf.ones([4, 64]))

    NUMBER = 3
"""
DEVICE = {"kind": "DeviceError", "code": "DEV-010", "what": "No gpu:5.", "why": "w", "fix": "f"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patches_undone: None) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    (tmp_path / "steps.py").write_text(textwrap.dedent(STEPS), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("EVENER_DEVICES", raising=False)
    return tmp_path


def command(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return run("audit", *args, folder=folder, COLUMNS="200", EVENER_DEVICES=None)


def refused(*args: str, limit_seconds: float = 120) -> EvenerError:
    with pytest.raises(EvenerError) as caught:
        request = audit_request(
            args[0], args[1:], script=read_target(args[0], as_module=False), devices="cpu:2"
        )
        audit_in_subprocess(request, limit_seconds=limit_seconds)
    return caught.value


def test_a_script_is_audited_up_to_its_first_step_and_no_further(folder: Path) -> None:
    done = command(folder, "--json", "train.py", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    audit = evener.Audit.from_json(done.stdout)
    # Its own output is kept apart.
    assert "xxx" not in done.stdout + done.stderr
    assert audit.step == "train.py: multi_step_on_iterator"
    kinds = {op.kind for op in audit.operations}
    assert kinds == {"forward", "gradient", "optimizer", "input"}
    (line,) = {str(op.line) for op in audit.operations if op.type == "MatMul"}
    assert line == "train.py:14"
    assert not (folder / "trained").exists() and not (folder / "ended").exists()


def test_a_function_is_audited_and_its_findings_end_with_one(folder: Path) -> None:
    done = command(
        folder, "--devices", "cpu:2", "--no-gpu-names", "--batch-size", "8", "steps:step"
    )
    assert done.returncode == 1, done.stderr
    text = " ".join(done.stdout.split())
    assert "Devices: cpu:0, cpu:1" in text
    assert "MatMul has no GPU kernel for T=int32" in text
    assert "gpu:0 does not exist" in text
    assert "steps.py:11" in text
    assert "16.0 KiB" in text  # the weights, or their gradient


@pytest.mark.long
def test_what_stand_ins_answer_for_is_judged_as_what_runs_on_gpus(folder: Path) -> None:
    done = command(folder, "--devices", "cpu:2", "--batch-size", "8", "--json", "steps:step")
    assert done.returncode == 1, done.stderr
    audit = evener.Audit.from_json(done.stdout)
    (found,) = audit.findings
    assert (found.reason, found.requested, found.device) == (
        "no_kernel_for_dtype",
        "gpu:0",
        "cpu:0",
    )


class Answered(Exception):
    """Ends a program where its process would end."""


class HereFirst(FirstStep):
    """As in the process of a program, but here."""

    def answer(self, **fields):
        raise Answered(to_plain(Answer(**fields)))


def answer_of(name: str, monkeypatch: pytest.MonkeyPatch, **choices) -> dict:
    """Return the answer of the process for ``steps:NAME``, without starting one."""
    monkeypatch.delitem(sys.modules, "steps", raising=False)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    given = {"devices": None, "assume_gpus": False, "batch_size": None, **choices}
    request = audit_request(f"steps:{name}" if ":" not in name else name, (), script=None, **given)
    first = HereFirst(request, Path("request.json"))
    with pytest.raises(Answered) as answered:
        first.run(lambda: call_step(importlib.import_module, request, first.answer_audit))
    return answered.value.args[0]


@pytest.mark.usefixtures("logical_cpus")
@pytest.mark.parametrize("name", ["pair", "trains", "only_looks"])
def test_a_plain_function_is_called(folder: Path, monkeypatch, name: str) -> None:
    audit = evener.Audit.from_json(answer_of(name, monkeypatch, assume_gpus=True)["audit"])
    assert {"forward", "gradient", "optimizer"} == {op.kind for op in audit.operations}
    # Meant for GPUs: none is here, and that is no finding.
    assert {finding.reason for finding in audit.findings} == {"no_kernel_for_dtype"}


@pytest.mark.usefixtures("logical_cpus")
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("needs", "PLACE-036", "it needs x, y"),
        ("NUMBER", "PLACE-036", "it is a int"),
        ("open_step", "PLACE-036", "it needs x, and has no input_signature"),
        ("step", "PLACE-041", "--batch-size 32"),
        ("stepp", "PLACE-043", "Did you mean 'step'?"),
        ("stepps:step", "PLACE-035", "There is no module 'stepps'"),
    ],
)
def test_a_name_that_leads_to_no_step(
    folder: Path, monkeypatch, name: str, code: str, said: str
) -> None:
    with pytest.raises(TargetError) as caught:
        answer_of(name, monkeypatch)
    assert caught.value.code == code
    assert said in str(caught.value)


@pytest.mark.usefixtures("logical_cpus")
@pytest.mark.parametrize("name", ["eagerly", "by_hand", "by_hand_once"])
def test_an_eager_training_step_ends_the_program(folder: Path, monkeypatch, name: str) -> None:
    found = answer_of(name, monkeypatch)
    assert found["outcome"] == "eager"
    assert found["line"].startswith("steps.py:")


@pytest.mark.long
def test_a_script_that_fails_shows_the_last_that_it_wrote(folder: Path) -> None:
    error = refused("train.py", "crash")
    assert error.code == "PLACE-038"
    assert "exit code 1" in str(error) and "ValueError: no data here" in str(error)
    # A program's own end runs its handlers; one that was stopped at a step does not.
    assert (folder / "ended").exists()


@pytest.mark.parametrize(
    ("exit_code", "output", "found", "code", "said"),
    [
        (7, "so long", None, "PLACE-038", "exit code 7. The end of its"),
        (-11, "", None, "PLACE-038", "signal 11. It printed nothing."),
        (5, "I0000 00:00:17.5  1 port.cc:1] x", None, "PLACE-038", "printed nothing."),
        (0, "1\n2", None, "PLACE-037", "    1\n    2"),
        (0, "", {"outcome": "ended"}, "PLACE-037", "ended without a training"),
        (None, "", None, "PLACE-039", "no training step in 9 seconds"),
        (0, "", {"outcome": "eager", "line": "a.py:3"}, "PLACE-040", "a.py:3"),
        (0, "", {"error": DEVICE}, "DEV-010", "No gpu:5."),
    ],
)
def test_every_ending_without_an_audit_is_an_error(
    folder: Path,
    monkeypatch,
    exit_code: int | None,
    output: str,
    found: dict | None,
    code: str,
    said: str,
) -> None:
    def run_child_process(command, *, environ, limit_seconds):
        if found is not None:
            answer_file(Path(command[-1])).write_text(json.dumps(found), encoding="utf-8")
        return ProcessResult(exit_code=exit_code, output=output)

    monkeypatch.setattr(first_step, "run_child_process", run_child_process)
    error = refused("train.py", limit_seconds=9)
    assert error.code == code
    assert said in str(error)
    assert not isinstance(error, TargetError)


@pytest.mark.long
def test_a_process_is_bounded_in_time_and_output_and_leaves_nothing(tmp_path: Path) -> None:
    code = f"""
import os, sys
print("x" * 5_000_000, "last words", flush=True)
if os.fork() == 0:
    open({str(tmp_path / "child")!r}, "w").write(str(os.getpid()))
    while True: pass
while not os.path.exists({str(tmp_path / "child")!r}): pass
if "end" in sys.argv: sys.exit(3)
while True: pass
"""
    for args, expected in (([], None), (["end"], 3)):
        (tmp_path / "child").unlink(missing_ok=True)
        result = run_child_process([sys.executable, "-c", code, *args], environ={}, limit_seconds=3)
        assert result.exit_code == expected
        assert result.output.endswith("last words\n") and len(result.output) <= 16384
        assert has_ended(int((tmp_path / "child").read_text(encoding="utf-8")))


def has_ended(process: int) -> bool:
    """Whether a process that was killed is gone, or is so soon."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    readable, _, _ = select.select([handle], [], [], 10)
    os.close(handle)
    return bool(readable)
