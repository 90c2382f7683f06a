"""A prediction that was wrong, and the part of it that was."""

from __future__ import annotations

from typing import Any

import pytest

from evener.plan import Predicted
from evener.planner.run_times import RunTimes, deviation

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


@pytest.mark.parametrize("step", [0.0851, 0.100, 0.1149])
def test_within_15_percent_nothing_is_told(step: float) -> None:
    assert deviation(PREDICTED, times(step)) is None


@pytest.mark.parametrize("step", [0.0849, 0.1151])
def test_beyond_15_percent_it_is_told(step: float) -> None:
    assert deviation(PREDICTED, times(step)) is not None


def test_the_compute_of_a_device() -> None:
    found = deviation(PREDICTED, times(0.150, gpu_1=0.125))
    assert found is not None
    assert found.what == "A step took 150.0 ms, and the plan predicted 100.0 ms."
    assert found.why == (
        "Median of 40 steps. What differs most: gpu:1 computed for 125.0 ms of a step, and 70.0 ms "
        "were predicted."
    )


def test_faster_than_predicted_is_wrong_too() -> None:
    found = deviation(PREDICTED, times(0.060, gpu_0=0.050, gpu_1=0.052))
    assert found is not None
    assert found.worst is not None
    assert found.worst.device == "gpu:0"


def test_communication_and_waiting() -> None:
    found = deviation(PREDICTED, times(0.200))
    assert found is not None
    assert found.worst is not None
    assert found.worst.device is None
    assert "waiting (for other devices, for data) took 120.0 ms" in found.why
    assert "20.0 ms were predicted" in found.why


def test_a_plan_that_predicts_no_parts() -> None:
    old = Predicted(step_seconds=0.1, peak_bytes={})
    found = deviation(old, times(0.2))
    assert found is not None
    assert found.worst is None
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
