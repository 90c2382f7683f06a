"""Runs whose passes and updates were timed together."""

from __future__ import annotations

import dataclasses

import pytest

from evener.plan import Plan
from evener.planner.prediction import calibrate, predict_plan, without_updates
from evener.planner.run_times import MeasuredRun, RunTimes
from evener.profile import CostProfile, Link
from unit.planner.profiles import cluster_of, model_of, times_of

SECONDS = [1e-3, 2e-3, 3e-3]
PLAN = Plan.data_parallel(["gpu:0"])


def profile(slowness: float = 1.0) -> CostProfile:
    times = tuple(
        dataclasses.replace(layer, update_seconds=slowness * 2e-3)
        for layer in times_of(SECONDS, slowness=slowness, overhead=0.0)
    )
    cluster = cluster_of(["fast"], [None], Link(bytes_per_second=1e10))
    return CostProfile(model=model_of(SECONDS), cluster=cluster, times={"fast": times})


def run(truth: CostProfile, *, with_updates: bool = True) -> MeasuredRun:
    (replica,) = predict_plan(PLAN, truth, 64).replicas
    seconds = replica.seconds if with_updates else replica.compute_seconds
    times = RunTimes(
        num_steps=50,
        samples=(64,),
        step_seconds=replica.seconds,
        busy_seconds={"gpu:0": seconds},
        hardware={"gpu:0": "fast"},
        with_updates=with_updates,
    )
    return MeasuredRun(plan=PLAN, times=times)


@pytest.mark.parametrize("slowness", [0.5, 1.0, 3.0])
def test_the_passes_are_found(slowness: float) -> None:
    """A device that is slower in all that it computes: its passes are as much slower."""
    measured = run(profile(slowness))
    found = without_updates(measured, profile())
    alone = run(profile(slowness), with_updates=False)
    assert found.times.busy_seconds == pytest.approx(alone.times.busy_seconds)
    assert not found.times.with_updates
    assert calibrate(profile(), found).factors["fast"].value == pytest.approx(slowness)


def test_other_runs_stay_as_they_are() -> None:
    alone = run(profile(), with_updates=False)
    assert without_updates(alone, profile()) is alone
    elsewhere = dataclasses.replace(run(profile()), plan=Plan.data_parallel(["gpu:7"]))
    assert without_updates(elsewhere, profile()) is elsewhere
