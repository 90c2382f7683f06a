"""Profiles that are scaled by what a run measured."""

from __future__ import annotations

from typing import Any

import pytest

from evener.errors import ProfileError
from evener.plan import Plan
from evener.planner import plan_profile
from evener.planner.assignment import assignment_of
from evener.planner.prediction import busy_seconds, calibrate, predict, predict_plan
from evener.planner.run_times import MeasuredRun, RunTimes
from evener.profile import CostProfile, Link
from unit.planner.profiles import cluster_of, model_of, times_of

SECONDS = [1e-3, 2e-3, 3e-3]
PLAN = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3, 1])


def profile(**slowness: float) -> CostProfile:
    """Return a profile of two devices, of which the second is three times as slow."""
    times = {"fast": 1.0, "slow": 3.0, **slowness}
    return CostProfile(
        model=model_of(SECONDS),
        cluster=cluster_of(["fast", "slow"], [None, None], Link(bytes_per_second=1e10)),
        times={
            name: times_of(SECONDS, slowness=slowness, overhead=0.0)
            for name, slowness in times.items()
        },
    )


def run(truth: CostProfile, plan: Plan = PLAN, batch_size: int = 64, **changes: Any) -> MeasuredRun:
    """Return what a run would measure if a profile were true."""
    found = assignment_of(plan, truth.model, truth.cluster, batch_size)
    names = [device.name for device in truth.cluster.devices]
    given = {
        "num_steps": 50,
        "samples": tuple(replica.samples for replica in found.replicas),
        "step_seconds": predict_plan(plan, truth, batch_size).step_seconds,
        "busy_seconds": {
            names[index]: seconds
            for index, seconds in busy_seconds(found, predict(found, truth)).items()
        },
        "hardware": {device.name: device.type for device in truth.cluster.devices},
    }
    return MeasuredRun(plan=plan, times=RunTimes(**{**given, **changes}))


def test_busy_seconds_are_those_of_all_stages_of_a_device() -> None:
    known = profile()
    names = [layer.name for layer in known.model.layers]
    turns = Plan.pipeline(
        [("gpu:0", names[0]), ("gpu:1", names[1]), ("gpu:0", names[2])], num_micro_batches=4
    )
    whole = Plan.data_parallel(["gpu:0"], num_micro_batches=4)
    assignments = [assignment_of(p, known.model, known.cluster, 16) for p in (turns, whole)]
    found, alone = (busy_seconds(each, predict(each, known)) for each in assignments)
    assert found[0] == pytest.approx(alone[0] * 4 / 6)
    assert found[1] == pytest.approx(3 * alone[0] * 2 / 6)


def test_the_true_profile_is_found() -> None:
    truth = profile(fast=2.0, slow=3.3)
    found = calibrate(profile(), run(truth))
    factors = {kind: factor.value for kind, factor in found.factors.items()}
    assert factors == pytest.approx({"fast": 2.0, "slow": 1.1})
    assert found.step_seconds == pytest.approx(found.run.times.step_seconds, rel=0.05)
    assert plan_profile(found.profile, 64).plan.shares == plan_profile(truth, 64).plan.shares
    assert plan_profile(found.profile, 64).plan.shares != plan_profile(profile(), 64).plan.shares


def test_a_calibrated_profile_stays_as_it_is() -> None:
    measured = run(profile(fast=2.0))
    once = calibrate(profile(), measured)
    again = calibrate(once.profile, measured)
    assert [factor.value for factor in again.factors.values()] == pytest.approx([1.0, 1.0])


def test_a_kind_that_did_not_compute_is_left_as_it_was() -> None:
    alone = Plan.data_parallel(["gpu:0"])
    found = calibrate(profile(), run(profile(fast=2.0), alone))
    assert list(found.factors) == ["fast"]
    assert found.profile.times["slow"] == profile().times["slow"]
    assert "slow: as it was" in found.lines()[1]
    assert found.lines()[0].startswith("fast: times 2.00 (computed ")


@pytest.mark.parametrize(
    ("measured", "code", "what"),
    [
        (
            run(profile(), hardware={"gpu:0": "other", "gpu:1": "slow"}),
            "PROF-052",
            "gpu:0 (other)",
        ),
        (
            run(profile(), busy_seconds={"gpu:0": 1.0, "gpu:7": 1.0}),
            "PROF-052",
            "gpu:7 ()",
        ),
        (
            MeasuredRun(
                plan=Plan.pipeline({"gpu:0": "encoder", "gpu:1": "decoder"}),
                times=run(profile(), samples=(64,)).times,
            ),
            "PROF-053",
            "not one for the layers of the profile",
        ),
    ],
    ids=["other hardware", "no such device", "other model"],
)
def test_a_run_of_something_else_is_refused(measured: MeasuredRun, code: str, what: str) -> None:
    with pytest.raises(ProfileError) as caught:
        calibrate(profile(), measured)
    assert caught.value.code == code
    assert what in caught.value.what
