"""Step times of a run: medians, and the report file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evener.errors import ProfileError
from evener.plan import Plan
from evener.planner.run_times import StepRecord, read_run, run_times

PLAN = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3, 1])


def records(
    steps: Sequence[float], samples: tuple[int, ...] = (3, 1), *, began: float = 0.0
) -> list[StepRecord]:
    """Return steps of so many seconds, of which the devices compute a half and a quarter."""
    found: list[StepRecord] = []
    for seconds in steps:
        busy = (seconds / 2, seconds / 4)
        found.append(StepRecord(began=began, samples=samples, busy_seconds=busy))
        began += seconds
    return found


def test_times_are_medians() -> None:
    found = run_times(records([1, 1, 100, 3, 3, 9]), ["gpu:0", "gpu:1"], {"gpu:0": "A100"})
    assert found is not None
    # The last step has no end.
    assert (found.num_steps, found.step_seconds) == (5, 3)
    assert found.busy_seconds == {"gpu:0": 1.5, "gpu:1": 0.75}
    assert (found.samples, found.batch_size, found.hardware) == ((3, 1), 4, {"gpu:0": "A100"})


def test_steps_of_other_samples_are_left_out() -> None:
    usual, last = records([2, 2, 2]), records([50, 50], (1, 1), began=6)
    found = run_times([*usual, *last, *records([2, 2], began=106)], ["gpu:0", "gpu:1"], {})
    assert found is not None
    assert (found.samples, found.num_steps, found.step_seconds) == ((3, 1), 4, 2)


def test_of_two_models_the_first_is_timed() -> None:
    """Two models in turns: the steps of the second take three times as long."""
    both = records([1, 3] * 4)
    turns = [dataclasses.replace(record, trace=k % 2) for k, record in enumerate(both)]
    found = run_times(turns, ["gpu:0", "gpu:1"], {})
    assert found is not None
    assert (found.num_steps, found.step_seconds) == (4, 1)


@pytest.mark.parametrize("steps", [[], [1]])
def test_no_two_steps_have_no_times(steps: list[float]) -> None:
    assert run_times(records(steps), ["gpu:0", "gpu:1"], {}) is None


def report(num_steps: int = 30, **changes: Any) -> dict[str, Any]:
    steps = {
        "num_steps": num_steps,
        "samples": [3, 1],
        "step_seconds": 0.5,
        "busy_seconds": {"gpu:0": 0.25, "gpu:1": 0.125},
        "hardware": {"gpu:0": "A100", "gpu:1": "A100"},
    }
    return {"script": "train.py", "plan": json.loads(PLAN.to_json()), "steps": steps, **changes}


@pytest.mark.parametrize("before", ["", "evener: a note\n"])
def test_a_report_is_read_as_a_file_or_its_last_line(tmp_path: Path, before: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(f"{before}{json.dumps(report())}\n", encoding="utf-8")
    run = read_run(file)
    assert run.plan == PLAN
    assert (run.times.batch_size, run.times.step_seconds) == (4, 0.5)
    assert run.times.busy_seconds == {"gpu:0": 0.25, "gpu:1": 0.125}


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        (None, "PROF-050", "No such file"),
        ("", "PROF-050", "JSONDecodeError"),
        ("[]", "PROF-050", "TypeError"),
        ("{}", "PROF-050", "'plan'"),
        (json.dumps(report(plan={"version": 1})), "PROF-050", "missing the key"),
        (json.dumps(report(steps={"num_steps": 30})), "PROF-050", "missing the key 'samples'"),
        (json.dumps(report(19)), "PROF-051", "first 5 steps"),
        (json.dumps(report(steps=None)), "PROF-051", "on one device in one part"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str | None, code: str, why: str) -> None:
    file = tmp_path / "run.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        read_run(file)
    assert caught.value.code == code
    assert why in caught.value.why
    if code == "PROF-050":
        assert caught.value.what == f"{file} holds no report of a run."
        assert f"evener run --report-file {file} SCRIPT" in caught.value.fix
