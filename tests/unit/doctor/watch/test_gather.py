"""Events of a process and facts known to its parent, joined into one observation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evener.doctor import Finding, examine
from evener.doctor.rules.crashed import explained
from evener.doctor.surroundings import Surroundings
from evener.doctor.watch import Line, Observation, Outcome, Raised, Steps
from evener.doctor.watch.gather import Run, observation_of, read_events
from evener.doctor.watch.stacks import innermost_in_dump, innermost_in_message

HERE = "/home/me/train.py"
LIBRARY = "/usr/lib/python3/site-packages/keras/trainer.py"


def own(file: str) -> bool:
    return file.startswith("/home/me/")


def run(status: int | None = 0, *, timed_out: bool = False, seconds: float = 9.0) -> Run:
    return Run(seconds=seconds, timed_out=timed_out, status=status)


def step(seconds: float | None, *, num: int = 1, waited: float = 0.0, at: float = 1.0) -> Any:
    where = [HERE, 7]
    values = {"num": num, "at": at, "seconds": seconds, "input": waited, "where": where}
    return {"kind": "step", **values}


RAISED = {"kind": "raised", "kind_of": "ValueError", "message": "no", "where": None, "code": ""}
EXIT = {"kind": "exit", "status": 3, "how": "sys.exit", "where": [HERE, 2]}


@pytest.mark.parametrize(
    ("events", "ran", "outcome", "code"),
    [
        ([], run(0), Outcome.FINISHED, 0),
        ([], run(1), Outcome.EXITED, 1),
        ([EXIT], run(3), Outcome.EXITED, 3),
        ([RAISED], run(1), Outcome.CRASHED, 1),
        ([], run(-11), Outcome.CRASHED, -11),
        ([], run(-15, timed_out=True), Outcome.TIMED_OUT, None),
        # Ended by us while it told that enough was seen.
        ([{"kind": "enough"}], run(-9, timed_out=True), Outcome.ENOUGH, None),
        ([], run(None, timed_out=True), Outcome.TIMED_OUT, None),
    ],
)
def test_the_outcome(events: list[Any], ran: Run, outcome: Outcome, code: int | None) -> None:
    seen = observation_of(events, ran)
    assert (seen.outcome, seen.exit_code) == (outcome, code)


def test_steps_are_medians_without_tracing() -> None:
    training = {"kind": "training", "num_replicas": 2, "batch_size": 64}
    told = [training, step(None), step(0.5, waited=0.1), step(2.0, num=4, waited=0.8), step(9.0)]
    seen = observation_of(told, run())
    assert seen.steps == Steps(
        num_steps=7,
        step_seconds=0.5,
        input_seconds=0.1,
        where=Line(file=HERE, line=7),
        batch_size=64,
        num_replicas=2,
    )
    assert seen.still_seconds == 8.0


def test_steps_within_a_graph_count_until_their_call_returns() -> None:
    loop = {**step(0.4, num=4), "kind": "loop"}
    seen = observation_of([loop, loop], run())
    assert seen.steps is not None
    assert (seen.steps.num_steps, seen.steps.step_seconds) == (8, 0.1)
    seen = observation_of([loop, step(None)], run())
    assert seen.steps is not None
    assert (seen.steps.num_steps, seen.steps.step_seconds) == (1, 0.0)


def test_what_only_grows_counts_once() -> None:
    text = "\n".join(
        json.dumps({"kind": "reads", "reads": [[HERE, 9, number, number / 10]]})
        for number in (1, 5)
    )
    (read,) = observation_of(read_events(text + '\n{"kind": "rea'), run()).host_reads
    assert (read.where, read.num_reads, read.seconds) == (Line(file=HERE, line=9), 5, 0.5)


DUMP = f"""\
Thread 0x0000000000000022 (most recent call first):
  File "{HERE}", line 3 in worker
Thread 0x0000000000000011 (most recent call first):
  File "{LIBRARY}", line 90 in fit
  File "{HERE}", line 12 in train
  File "{HERE}", line 20 in <module>
"""


def test_the_main_thread_of_the_last_dump_counts() -> None:
    assert innermost_in_dump(DUMP, 0x11, own) == Line(file=HERE, line=12)
    later = DUMP.replace("line 12", "line 13").replace("Thread", "Current thread", 1)
    assert innermost_in_dump(DUMP + later, 0x11, own) == Line(file=HERE, line=13)
    # None of its lines is the person's own: then another thread's.
    assert innermost_in_dump(DUMP, 0x99, own) == Line(file=HERE, line=12)
    assert innermost_in_dump("", 0x11, own) is None


def test_the_last_own_line_of_a_message_counts() -> None:
    message = f'in user code:\n  File "{HERE}", line 4, in a\n  File "{LIBRARY}", line 5, in b'
    assert innermost_in_message(message, own) == Line(file=HERE, line=4)
    assert innermost_in_message("nothing", own) is None


def findings(seen: Observation, folder: Path) -> list[Finding]:
    script = folder / "train.py"
    script.write_text("print('x')\n", encoding="utf-8")
    return list(examine(script, Surroundings(), seen).findings)


STEPS = Steps(num_steps=30, step_seconds=0.1, input_seconds=0.0)


@pytest.mark.parametrize(
    ("seen", "codes"),
    [
        (Observation(outcome=Outcome.ENOUGH, seconds=9.0, steps=STEPS), []),
        (Observation(outcome=Outcome.FINISHED, seconds=9.0, exit_code=0, steps=STEPS), []),
        (Observation(outcome=Outcome.FINISHED, seconds=9.0, exit_code=0), ["DOC-012"]),
        (Observation(outcome=Outcome.EXITED, seconds=9.0, exit_code=0, steps=STEPS), []),
        (Observation(outcome=Outcome.EXITED, seconds=9.0, exit_code=4, steps=STEPS), ["DOC-012"]),
        (Observation(outcome=Outcome.TIMED_OUT, seconds=99.0), ["DOC-010"]),
        # Slow, and still at work.
        (Observation(outcome=Outcome.TIMED_OUT, seconds=99.0, steps=STEPS, still_seconds=19.0), []),
        (
            Observation(outcome=Outcome.TIMED_OUT, seconds=99.0, steps=STEPS, still_seconds=21.0),
            ["DOC-010"],
        ),
    ],
)
def test_rules_of_runs(seen: Observation, codes: list[str], tmp_path: Path) -> None:
    assert [finding.code for finding in findings(seen, tmp_path)] == codes


@pytest.mark.parametrize(
    ("kind", "message", "said"),
    [
        ("ValueError", "Attempt to convert a value (PerReplica:{ ... }) to a Tensor", "replica"),
        (
            "InvalidArgumentError",
            "You must feed a value for placeholder tensor 'x' with dtype float",
            "another graph",
        ),
        ("ResourceExhaustedError", "OOM when allocating tensor with shape[9]", "memory"),
        (
            "InvalidArgumentError",
            "cannot compute MatMul as input #1(zero-based) was expected to be a float tensor but "
            "is a double tensor [Op:MatMul]",
            "dtypes",
        ),
        (
            "TypeError",
            "Input 'b' of 'MatMul' Op has type float64 that does not match type float32 of "
            "argument 'a'.",
            "dtypes",
        ),
        (
            "InvalidArgumentError",
            "Cannot assign a device for operation MatMul: Could not satisfy explicit device "
            "specification '/device:GPU:0' because no supported kernel for GPU devices is "
            "available.",
            "kernel",
        ),
        ("InvalidArgumentError", "Incompatible shapes: [3] vs. [4]", "shapes"),
        ("SIGSEGV", "Segmentation fault", "Native code"),
        ("SIGKILL", "Killed", "memory"),
        ("ValueError", "my own words", "without the doctor"),
    ],
)
def test_known_messages_are_said_in_plain_words(kind: str, message: str, said: str) -> None:
    why, fix = explained(Raised(kind=kind, message=message, where=None))
    assert said in why
    assert fix


def test_an_error_of_evener_says_itself_what_to_do() -> None:
    why, fix = explained(Raised(kind="PlanError", message="no", where=None, code="PLAN-012"))
    assert "evener refuses" in why
    assert fix == "follow its message."
