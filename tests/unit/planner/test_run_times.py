"""Times of a run: medians, the report file, and predictions that were wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evener.errors import ProfileError
from evener.plan import Plan, Predicted
from evener.planner.run_times import RunTimes, StepRecord, deviation, read_run, run_times

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
    # Steps of other samples are left out.
    usual, last = records([2, 2, 2]), records([50, 50], (1, 1), began=6)
    found = run_times([*usual, *last, *records([2, 2], began=106)], ["gpu:0", "gpu:1"], {})
    assert found is not None
    assert (found.samples, found.num_steps, found.step_seconds) == ((3, 1), 4, 2)
    for steps in ([], [1]):
        assert run_times(records(steps), ["gpu:0", "gpu:1"], {}) is None


def test_of_two_models_the_first_is_timed() -> None:
    """Two models in turns: the steps of the second take three times as long."""
    both = records([1, 3] * 4)
    turns = [dataclasses.replace(record, trace=k % 2) for k, record in enumerate(both)]
    found = run_times(turns, ["gpu:0", "gpu:1"], {})
    assert found is not None
    assert (found.num_steps, found.step_seconds) == (4, 1)


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


PREDICTED = Predicted(
    step_seconds=0.100,
    peak_bytes={},
    busy_seconds={"gpu:0": 0.080, "gpu:1": 0.070},
    batch_size=32,
)


def times(step: float, gpu_0: float = 0.080, gpu_1: float = 0.070, **changes: Any) -> RunTimes:
    given = {
        "num_steps": 40,
        "samples": (24, 8),
        "step_seconds": step,
        "busy_seconds": {"gpu:0": gpu_0, "gpu:1": gpu_1},
        "hardware": {},
    }
    return RunTimes(**{**given, **changes})


@pytest.mark.parametrize(
    ("step", "is_told"),
    [(0.0849, True), (0.0851, False), (0.100, False), (0.1149, False), (0.1151, True)],
)
def test_beyond_15_percent_it_is_told(step: float, is_told: bool) -> None:
    assert (deviation(PREDICTED, times(step)) is not None) == is_told


def test_the_compute_of_a_device() -> None:
    found = deviation(PREDICTED, times(0.150, gpu_1=0.125))
    assert found is not None
    assert found.what == "A step took 150.0 ms, and the plan predicted 100.0 ms."
    assert found.why == (
        "Median of 40 steps. What differs most: gpu:1 computed for 125.0 ms of a step, and 70.0 ms "
        "were predicted."
    )
    faster = deviation(PREDICTED, times(0.060, gpu_0=0.050, gpu_1=0.052))
    assert faster is not None and faster.worst is not None
    assert faster.worst.device == "gpu:0"


def test_communication_and_waiting() -> None:
    found = deviation(PREDICTED, times(0.200))
    assert found is not None and found.worst is not None
    assert found.worst.device is None
    assert "waiting (for other devices, for data) took 120.0 ms" in found.why
    assert "20.0 ms were predicted" in found.why


def test_a_plan_that_predicts_no_parts() -> None:
    found = deviation(Predicted(step_seconds=0.1, peak_bytes={}), times(0.2))
    assert found is not None and found.worst is None
    assert "does not predict" in found.why


@pytest.mark.parametrize(
    "run",
    [None, times(0.5, num_steps=19), times(0.5, samples=(24, 9))],
    ids=["not timed", "few steps", "other batch"],
)
def test_what_cannot_be_compared_is_not_told(run: RunTimes | None) -> None:
    assert deviation(PREDICTED, run) is None


@pytest.mark.parametrize(
    ("busy", "what"),
    [
        (0.180, "gpu:0 computed passes and updates for 180.0 ms of a step, and 100.0 ms were"),
        (0.110, "waiting for data and for Python took 90.0 ms of a step, and "),
    ],
)
def test_a_step_on_one_device_is_computed_or_waits(busy: float, what: str) -> None:
    alone = {"samples": (32,), "busy_seconds": {"gpu:0": busy}, "with_updates": True}
    found = deviation(PREDICTED, times(0.200, **alone))
    assert found is not None
    assert what in found.why
