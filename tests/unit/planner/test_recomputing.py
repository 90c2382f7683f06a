"""Layers that are computed again: as few as memory asks for."""

from __future__ import annotations

import dataclasses

import pytest

from evener.planner import Choices, plan_profile, search_plan
from evener.planner.assignment import Assignment, ReplicaAssignment, Span
from evener.planner.candidates import PlanEvaluator, keep_activations, swaps
from evener.planner.memory import shortages
from evener.planner.prediction import predict, recomputed_layers
from evener.profile import CostProfile
from unit.planner.profiles import MIB, cluster_of, model_of, times_of

SECONDS = [1e-3, 5e-3, 2e-3, 2e-3, 8e-3, 1e-3]
AT_ONCE = Choices(num_micro_batches=(1,), host=False)


def profile_of(
    memory: int | None, *, seconds: list[float] = SECONDS, unlike: tuple[float, ...] = (1.0,)
) -> CostProfile:
    return CostProfile(
        model=model_of(seconds, activation_bytes=4.0 * MIB, unlike=unlike),
        cluster=cluster_of(["one"], [memory]),
        times={"one": times_of(seconds, slowness=1.0, overhead=0.0)},
    )


def assigned(profile: CostProfile, samples: int = 8) -> Assignment:
    num_layers = len(profile.model.layers)
    return Assignment(
        replicas=(ReplicaAssignment(samples=samples, spans=(Span(0, 0, num_layers),)),),
        owners=(0,) * num_layers,
        recompute=(False,) * num_layers,
    )


def with_all_recomputed(assignment: Assignment, profile: CostProfile) -> Assignment:
    return dataclasses.replace(assignment, recompute=recomputed_layers(profile.model))


def kept(profile: CostProfile) -> Assignment:
    everything = with_all_recomputed(assigned(profile), profile)
    evaluator = PlanEvaluator(profile, AT_ONCE)
    return keep_activations(evaluator.candidate(everything), evaluator).assignment


def test_some_layers_are_faster_than_all_and_none_does_not_fit() -> None:
    profile = profile_of(160 * MIB)
    none = predict(assigned(profile), profile)
    assert any(shortages(none.memory, profile.cluster))
    every = predict(with_all_recomputed(assigned(profile), profile), profile)
    assert not any(shortages(every.memory, profile.cluster))
    best = search_plan(profile, 8, AT_ONCE).best
    assert best is not None
    assert best.fits
    assert 0 < sum(best.assignment.recompute) < len(SECONDS)
    assert best.prediction.step_seconds < 0.85 * every.step_seconds


def test_layers_that_take_long_keep_their_activations() -> None:
    # There is room for those of four layers.
    assert kept(profile_of(190 * MIB)).recompute == (True, False, False, False, False, True)


def test_seconds_are_weighed_with_bytes() -> None:
    seconds = [3e-3, 2e-3, 2e-3, 2e-3, 2e-3, 1e-4]
    profile = profile_of(285 * MIB, seconds=seconds, unlike=(4.0, 1.0, 1.0, 1.0, 1.0, 4.0))
    # There is room for the first layer, or for the four behind it.
    assert kept(profile).recompute == (True, False, False, False, False, True)


def test_with_memory_enough_nothing_is_computed_again() -> None:
    best = search_plan(profile_of(None), 8, AT_ONCE).best
    assert best is not None
    assert not any(best.assignment.recompute)


def test_swaps_leave_out_layers_that_are_alike() -> None:
    profile = profile_of(None, seconds=[1e-3] * 4)
    given = with_all_recomputed(assigned(profile), profile)
    evaluator = PlanEvaluator(profile, AT_ONCE)
    # One of four layers, or two of them, of which the first reads as much as the others.
    assert [assignment.recompute for assignment in swaps(given, evaluator)] == [
        (False, True, True, True),
        (False, False, True, True),
    ]


def test_two_layers_may_take_the_place_of_one() -> None:
    profile = profile_of(None, seconds=[1e-3, 2e-3, 5e-3], unlike=(2.0, 2.0, 4.0))
    given = dataclasses.replace(assigned(profile), recompute=(False, False, True))
    evaluator = PlanEvaluator(profile, AT_ONCE)
    assert [assignment.recompute for assignment in swaps(given, evaluator)] == [
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (True, True, False),
    ]


@pytest.mark.parametrize("mebibytes", [90, 110, 130, 150, 170, 190, 210, 230])
def test_more_memory_never_takes_longer(mebibytes: int) -> None:
    less, more = (
        search_plan(profile_of(size * MIB), 8, AT_ONCE).best for size in (mebibytes, mebibytes + 20)
    )
    assert more is not None
    if less is not None:
        assert more.prediction.step_seconds <= less.prediction.step_seconds * (1 + 1e-9)


def test_the_plan_names_the_layers() -> None:
    plan = plan_profile(profile_of(190 * MIB), 8, AT_ONCE).plan
    assert plan.recompute == ("layer_0", "layer_5")
