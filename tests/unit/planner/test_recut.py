"""Cuts by an estimate that knows where the longest stage is."""

from __future__ import annotations

import itertools

import pytest

from evener.planner.assignment import Assignment, ReplicaAssignment, Span, spread_owners
from evener.planner.candidates import recut
from evener.planner.prediction import predict
from evener.profile import CostProfile, Link
from unit.planner.profiles import cluster_of, model_of, times_of


def profile_of(seconds: list[float], num_devices: int) -> CostProfile:
    return CostProfile(
        model=model_of(seconds, activation_bytes=1024.0),
        cluster=cluster_of(["one"] * num_devices, None, Link(bytes_per_second=1e12)),
        times={"one": times_of(seconds, slowness=1.0, overhead=0.0)},
    )


def pipeline(*bounds: int) -> ReplicaAssignment:
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
    profile = profile_of(seconds, num_stages)
    given = pipeline(*range(num_stages), len(seconds))
    tried = recut(given, (False,) * len(seconds), profile)
    assert all(replica.spans[-1].end == len(seconds) for replica in tried)
    assert {span.device for replica in tried for span in replica.spans} == set(range(num_stages))
    every = [pipeline(0, cut, len(seconds)) for cut in range(1, len(seconds))]
    if num_stages == 3:
        every = [
            pipeline(0, first, second, len(seconds))
            for second in range(2, len(seconds))
            for first in range(1, second)
        ]
    best = min(seconds_of(replica, profile) for replica in every)
    assert min(seconds_of(replica, profile) for replica in tried) == pytest.approx(best)


def test_a_longer_first_stage_is_preferred() -> None:
    """It computes forward passes while it waits; the last stage cannot."""
    profile = profile_of([1e-3] * 5, 2)
    best = recut(pipeline(0, 2, 5), (False,) * 5, profile)[0]
    assert best.spans == (Span(0, 0, 3), Span(1, 3, 5))
    assert seconds_of(best, profile) < seconds_of(pipeline(0, 2, 5), profile)


def test_what_has_no_cuts_and_what_has_too_many() -> None:
    profile = profile_of([1e-3] * 5, 2)
    assert recut(pipeline(0, 5), (False,) * 5, profile) == []
    long = profile_of([1e-3] * 80, 3)
    assert recut(pipeline(0, 20, 50, 80), (False,) * 80, long) == []
