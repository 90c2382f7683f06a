"""Profiles that are scaled by what a run measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from evener.errors import ProfileError
from evener.plan import Plan
from evener.planner import plan_profile
from evener.planner.assignment import assignment_of
from evener.planner.prediction import (
    busy_seconds,
    calibrate,
    predict,
    predict_plan,
    without_updates,
)
from evener.planner.run_times import MeasuredRun, RunTimes
from evener.profile import CostProfile, Link
from unit.planner.profiles import cluster_of, model_of, profile_of, times_of

SECONDS = [1e-3, 2e-3, 3e-3]
PLAN = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3, 1])


def profile(**slowness: float) -> CostProfile:
    """Return a profile of two devices, of which the second is three times as slow."""
    cluster = cluster_of(["fast", "slow"], None, Link(bytes_per_second=1e10))
    return profile_of(SECONDS, {"fast": 1.0, "slow": 3.0, **slowness}, cluster)


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


def test_the_true_profile_is_found_and_stays_as_it_is() -> None:
    truth = profile(fast=2.0, slow=3.3)
    measured = run(truth)
    found = calibrate(profile(), measured)
    factors = {kind: factor.value for kind, factor in found.factors.items()}
    assert factors == pytest.approx({"fast": 2.0, "slow": 1.1})
    assert found.step_seconds == pytest.approx(found.run.times.step_seconds, rel=0.05)
    shares = [plan_profile(each, 64).plan.shares for each in (found.profile, truth, profile())]
    assert shares[0] == shares[1] != shares[2]
    again = calibrate(found.profile, measured)
    assert [factor.value for factor in again.factors.values()] == pytest.approx([1.0, 1.0])


def test_a_kind_that_did_not_compute_is_left_as_it_was() -> None:
    alone = Plan.data_parallel(["gpu:0"])
    found = calibrate(profile(), run(profile(fast=2.0), alone))
    assert list(found.factors) == ["fast"]
    assert found.profile.times["slow"] == profile().times["slow"]
    assert "slow: as it was" in found.lines()[1]
    assert found.lines()[0].startswith("fast: times 2.00 (computed ")


@pytest.mark.parametrize(
    ("changes", "code", "what"),
    [
        ({"hardware": {"gpu:0": "other", "gpu:1": "slow"}}, "PROF-052", "gpu:0 (other)"),
        ({"busy_seconds": {"gpu:0": 1.0, "gpu:7": 1.0}}, "PROF-052", "gpu:7 ()"),
        ({"samples": (64,)}, "PROF-053", "not one for the layers of the profile"),
    ],
    ids=["other hardware", "no such device", "other model"],
)
def test_a_run_of_something_else_is_refused(changes: dict[str, Any], code: str, what: str) -> None:
    measured = run(profile(), **changes)
    if code == "PROF-053":
        other = Plan.pipeline({"gpu:0": "encoder", "gpu:1": "decoder"})
        measured = MeasuredRun(plan=other, times=measured.times)
    with pytest.raises(ProfileError) as caught:
        calibrate(profile(), measured)
    assert caught.value.code == code
    assert what in caught.value.what


ONE_DEVICE = Plan.data_parallel(["gpu:0"])


def one_device_profile(slowness: float = 1.0) -> CostProfile:
    times = tuple(
        dataclasses.replace(layer, update_seconds=slowness * 2e-3)
        for layer in times_of(SECONDS, slowness=slowness, overhead=0.0)
    )
    cluster = cluster_of(["fast"], [None], Link(bytes_per_second=1e10))
    return CostProfile(model=model_of(SECONDS), cluster=cluster, times={"fast": times})


def whole_step_run(truth: CostProfile, *, with_updates: bool = True) -> MeasuredRun:
    (replica,) = predict_plan(ONE_DEVICE, truth, 64).replicas
    seconds = replica.seconds if with_updates else replica.compute_seconds
    times = RunTimes(
        num_steps=50,
        samples=(64,),
        step_seconds=replica.seconds,
        busy_seconds={"gpu:0": seconds},
        hardware={"gpu:0": "fast"},
        with_updates=with_updates,
    )
    return MeasuredRun(plan=ONE_DEVICE, times=times)


@pytest.mark.parametrize("slowness", [0.5, 1.0, 3.0])
def test_the_passes_are_found(slowness: float) -> None:
    """A device that is slower in all that it computes: its passes are as much slower."""
    known = one_device_profile()
    measured = whole_step_run(one_device_profile(slowness))
    found = without_updates(measured, known)
    alone = whole_step_run(one_device_profile(slowness), with_updates=False)
    assert found.times.busy_seconds == pytest.approx(alone.times.busy_seconds)
    assert not found.times.with_updates
    assert calibrate(known, found).factors["fast"].value == pytest.approx(slowness)
    # Other runs stay as they are.
    assert without_updates(alone, known) is alone
    elsewhere = dataclasses.replace(measured, plan=Plan.data_parallel(["gpu:7"]))
    assert without_updates(elsewhere, known) is elsewhere
