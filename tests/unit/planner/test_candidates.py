"""Small changes to a plan: layers, samples and owners move, activations are kept."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest

from evener.planner import Choices, plan_profile, search_plan
from evener.planner.assignment import HOST_OWNER, Assignment, ReplicaAssignment, Span, spread_owners
from evener.planner.candidates import PlanEvaluator, keep_activations, polish, recut, swaps
from evener.planner.memory import shortages
from evener.planner.prediction import predict, recomputed_layers
from evener.profile import CostProfile, Link
from unit.planner.profiles import MIB, cluster_of, profile_of


def pipeline(cut: int = 2, samples: int = 8, num_micro_batches: int = 1) -> ReplicaAssignment:
    return ReplicaAssignment(
        samples=samples,
        spans=(Span(0, 0, cut), Span(1, cut, 4)),
        num_micro_batches=num_micro_batches,
    )


def assigned(*replicas: ReplicaAssignment, owners: tuple[int, ...] = (0, 0, 1, 1)) -> Assignment:
    return Assignment(replicas=replicas, owners=owners, recompute=(False,) * 4)


def whole(device: int, samples: int) -> ReplicaAssignment:
    return ReplicaAssignment(samples=samples, spans=(Span(device, 0, 4),))


def test_layers_move_until_nothing_gets_better_and_take_their_owners_along() -> None:
    found = polish(
        assigned(pipeline(cut=1), owners=(0, 1, 1, 1)),
        lambda assignment: abs(assignment.replicas[0].spans[0].end - 3) + 1.0,
        [1],
        host=False,
    )
    assert found == assigned(pipeline(cut=3), owners=(0, 0, 0, 1))


@pytest.mark.parametrize(
    ("before", "score", "after"),
    [
        ((2, 6), lambda mine, other: max(mine, 3 * other), [6, 2]),
        # No replica loses its last sample.
        ((2, 2), lambda mine, other: 10.0 + other, [3, 1]),
    ],
)
def test_samples_move_to_another_replica(
    before: tuple[int, int], score: Callable[[int, int], float], after: list[int]
) -> None:
    found = polish(
        assigned(*(whole(device, samples) for device, samples in enumerate(before))),
        lambda assignment: score(*(replica.samples for replica in assignment.replicas)),
        [1],
        host=False,
    )
    assert [replica.samples for replica in found.replicas] == after


def test_another_number_of_micro_batches() -> None:
    found = polish(
        assigned(pipeline()),
        lambda assignment: 10.0 - assignment.replicas[0].num_micro_batches,
        [1, 2, 4, 16],
        host=False,
    )
    # There are 8 samples, and two stages keep two micro-batches in flight.
    assert found.replicas == (dataclasses.replace(pipeline(), num_micro_batches=4, in_flight=2),)


@pytest.mark.parametrize(("host", "owner"), [(True, HOST_OWNER), (False, 1)])
def test_another_owner(host: bool, owner: int) -> None:
    found = polish(
        assigned(whole(0, 1), whole(1, 1), owners=(0, 0, 0, 0)),
        lambda assignment: 10.0 + sum({HOST_OWNER: 0, 1: 1, 0: 2}[k] for k in assignment.owners),
        [1],
        host=host,
    )
    assert found.owners == (owner,) * 4


def test_owners_that_cannot_be_chosen_follow_the_replicas() -> None:
    found = polish(
        assigned(whole(0, 2), whole(1, 6), owners=(-2,) * 4),
        lambda assignment: max(assignment.replicas[0].samples, 3 * assignment.replicas[1].samples),
        [1],
        host=True,
        spread=lambda replicas: (replicas[0].samples,) * 4,
    )
    assert found.owners == (6,) * 4


def test_what_cannot_get_better_stays() -> None:
    before = assigned(pipeline(), whole(2, 3))
    assert polish(before, lambda _: 1.0, [1, 2, 4], host=True) is before


def pipeline_profile(seconds: list[float], num_devices: int) -> CostProfile:
    cluster = cluster_of(["one"] * num_devices, None, Link(bytes_per_second=1e12))
    return profile_of(seconds, {"one": 1.0}, cluster, activation_bytes=1024.0)


def cut_at(*bounds: int) -> ReplicaAssignment:
    spans = tuple(Span(k, begin, end) for k, (begin, end) in enumerate(itertools.pairwise(bounds)))
    return ReplicaAssignment(samples=8, spans=spans, num_micro_batches=4, in_flight=len(spans))


def seconds_of(replica: ReplicaAssignment, profile: CostProfile) -> float:
    layers = profile.model.layers
    owners = spread_owners(layers, (replica,), profile.cluster)
    recompute = (False,) * len(layers)
    assignment = Assignment(replicas=(replica,), owners=owners, recompute=recompute)
    return predict(assignment, profile).step_seconds


@pytest.mark.parametrize(
    "seconds",
    [
        [1e-3] * 5,
        [2e-3, 1e-3, 1e-3, 1e-3, 2e-3],
        [1e-3, 3e-3, 1e-3, 1e-3, 1e-3, 2e-3, 1e-3],
    ],
)
@pytest.mark.parametrize("num_stages", [2, 3])
def test_the_best_cuts_are_among_those_that_are_tried(
    seconds: list[float], num_stages: int
) -> None:
    profile, num_layers = pipeline_profile(seconds, num_stages), len(seconds)
    tried = recut(cut_at(*range(num_stages), num_layers), (False,) * num_layers, profile)
    assert all(replica.spans[-1].end == num_layers for replica in tried)
    assert {span.device for replica in tried for span in replica.spans} == set(range(num_stages))
    inner = itertools.combinations(range(1, num_layers), num_stages - 1)
    best = min(seconds_of(cut_at(0, *cuts, num_layers), profile) for cuts in inner)
    assert min(seconds_of(replica, profile) for replica in tried) == pytest.approx(best)


def test_a_longer_first_stage_is_preferred() -> None:
    """It computes forward passes while it waits; the last stage cannot."""
    profile = pipeline_profile([1e-3] * 5, 2)
    best = recut(cut_at(0, 2, 5), (False,) * 5, profile)[0]
    assert best.spans == (Span(0, 0, 3), Span(1, 3, 5))
    assert seconds_of(best, profile) < seconds_of(cut_at(0, 2, 5), profile)


def test_what_has_no_cuts_and_what_has_too_many() -> None:
    profile = pipeline_profile([1e-3] * 5, 2)
    assert recut(cut_at(0, 5), (False,) * 5, profile) == []
    long = pipeline_profile([1e-3] * 80, 3)
    assert recut(cut_at(0, 20, 50, 80), (False,) * 80, long) == []


SECONDS = [1e-3, 5e-3, 2e-3, 2e-3, 8e-3, 1e-3]
AT_ONCE = Choices(num_micro_batches=(1,), host=False)


def tight_profile(
    memory: int | None, *, seconds: list[float] = SECONDS, unlike: tuple[float, ...] = (1.0,)
) -> CostProfile:
    options = {"activation_bytes": 4.0 * MIB, "unlike": unlike}
    return profile_of(seconds, {"one": 1.0}, cluster_of(["one"], [memory]), **options)


def alone(profile: CostProfile, samples: int = 8) -> Assignment:
    num_layers = len(profile.model.layers)
    return Assignment(
        replicas=(ReplicaAssignment(samples=samples, spans=(Span(0, 0, num_layers),)),),
        owners=(0,) * num_layers,
        recompute=(False,) * num_layers,
    )


def with_all_recomputed(assignment: Assignment, profile: CostProfile) -> Assignment:
    return dataclasses.replace(assignment, recompute=recomputed_layers(profile.model))


def kept(profile: CostProfile) -> Assignment:
    everything = with_all_recomputed(alone(profile), profile)
    evaluator = PlanEvaluator(profile, AT_ONCE)
    return keep_activations(evaluator.candidate(everything), evaluator).assignment


def test_some_layers_are_faster_than_all_and_none_does_not_fit() -> None:
    profile = tight_profile(160 * MIB)
    none = predict(alone(profile), profile)
    assert any(shortages(none.memory, profile.cluster))
    every = predict(with_all_recomputed(alone(profile), profile), profile)
    assert not any(shortages(every.memory, profile.cluster))
    best = search_plan(profile, 8, AT_ONCE).best
    assert best is not None
    assert best.fits
    assert 0 < sum(best.assignment.recompute) < len(SECONDS)
    assert best.prediction.step_seconds < 0.85 * every.step_seconds
    with_enough = search_plan(tight_profile(None), 8, AT_ONCE).best
    assert with_enough is not None and not any(with_enough.assignment.recompute)


def test_layers_that_take_long_keep_their_activations() -> None:
    # There is room for those of four layers.
    profile = tight_profile(190 * MIB)
    assert kept(profile).recompute == (True, False, False, False, False, True)
    assert plan_profile(profile, 8, AT_ONCE).plan.recompute == ("layer_0", "layer_5")


def test_seconds_are_weighed_with_bytes() -> None:
    seconds = [3e-3, 2e-3, 2e-3, 2e-3, 2e-3, 1e-4]
    profile = tight_profile(285 * MIB, seconds=seconds, unlike=(4.0, 1.0, 1.0, 1.0, 1.0, 4.0))
    # There is room for the first layer, or for the four behind it.
    assert kept(profile).recompute == (True, False, False, False, False, True)


def test_swaps_leave_out_layers_that_are_alike() -> None:
    profile = tight_profile(None, seconds=[1e-3] * 4)
    given = with_all_recomputed(alone(profile), profile)
    evaluator = PlanEvaluator(profile, AT_ONCE)
    # One of four layers, or two of them, of which the first reads as much as the others.
    assert [assignment.recompute for assignment in swaps(given, evaluator)] == [
        (False, True, True, True),
        (False, False, True, True),
    ]


def test_two_layers_may_take_the_place_of_one() -> None:
    profile = tight_profile(None, seconds=[1e-3, 2e-3, 5e-3], unlike=(2.0, 2.0, 4.0))
    given = dataclasses.replace(alone(profile), recompute=(False, False, True))
    evaluator = PlanEvaluator(profile, AT_ONCE)
    assert [assignment.recompute for assignment in swaps(given, evaluator)] == [
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (True, True, False),
    ]


def test_more_memory_never_takes_longer() -> None:
    before = math.inf
    for mebibytes in range(90, 270, 20):
        best = search_plan(tight_profile(mebibytes * MIB), 8, AT_ONCE).best
        if best is not None:
            assert best.prediction.step_seconds <= before * (1 + 1e-9)
            before = best.prediction.step_seconds
    assert before < math.inf
