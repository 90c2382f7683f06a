"""Simulated steps in which all parts of the batch meet, against hand counts and the prediction."""

from __future__ import annotations

import dataclasses
import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.plan import Plan
from evener.planner.assignment import Assignment, Span, assignment_of
from evener.planner.prediction import predict
from evener.planner.step_time import seconds_with_barriers, span_seconds, step_has_barriers
from evener.profile import CostProfile
from simulation.cases import cases, pipelines, with_links
from simulation.simulation import Simulation, simulate
from unit.planner.by_hand import FREE, assigned, barrier, cluster_of, pipeline, profile_of, whole

ROUNDING = 1 + 1e-9


def spans_of(step: Simulation, device: int) -> list[tuple[str, float, float]]:
    passes = (event for event in step.devices[device] if event.kind != "update")
    return [(event.what, event.begin_seconds, event.end_seconds) for event in passes]


def last_pass(step: Simulation) -> float:
    return max(
        event.end_seconds for events in step.devices for event in events if event.kind != "update"
    )


@st.composite
def barriers(draw: st.DrawFn, drawn: st.SearchStrategy) -> tuple[Assignment, CostProfile]:
    """A case of which some layers meet."""
    assignment, profile = draw(drawn)
    counts = st.sampled_from(((0, 0), (2, 1), (2, 0), (0, 1)))
    layers = tuple(
        dataclasses.replace(
            layer, forward_barriers=forward, backward_barriers=backward, barrier_bytes=waiting
        )
        for layer in profile.model.layers
        for (forward, backward), waiting in [draw(st.tuples(counts, st.sampled_from((0.0, 1e5))))]
    )
    model = dataclasses.replace(profile.model, layers=layers)
    return assignment, dataclasses.replace(profile, model=model)


def test_replicas_wait_for_the_slowest_at_each_barrier() -> None:
    profile = barrier(profile_of(cluster_of(2, link=FREE)), 0)
    both = assigned(whole(0, samples=1), whole(1, samples=2), owners=(0, 0))
    step = simulate(both, profile)
    assert spans_of(step, 0) == [
        ("replica 0, forward 0 of a", 0.0, 1.0),
        # The other replica has two samples.
        ("replica 0, forward 0 of b", 2.0, 4.0),
        ("replica 0, backward 0 of b", 4.0, 8.0),
        ("replica 0, backward 0 of a", 8.0, 10.0),
    ]
    assert spans_of(step, 1)[-1] == ("replica 1, backward 0 of a", 14.0, 18.0)
    # The prediction has both updates at the end; gpu:0 updates layer b while it waits.
    assert step.step_seconds == predict(both, profile).step_seconds - 0.25


def test_micro_batches_meet_on_one_device() -> None:
    profile = barrier(profile_of(cluster_of(1)), 0)
    split = assigned(whole(0, samples=2, num_micro_batches=2), owners=(0, 0))
    step = simulate(split, profile)
    assert spans_of(step, 0) == [
        ("forward 0 of a", 0.0, 1.0),
        ("forward 1 of a", 1.0, 2.0),
        ("forward 0 of b", 2.0, 4.0),
        # Both layers come before the next barrier.
        ("backward 0 of stage 0", 4.0, 10.0),
        ("forward 1 of b", 10.0, 12.0),
        ("backward 1 of b", 12.0, 16.0),
        ("backward 1 of a", 16.0, 18.0),
    ]
    assert step.step_seconds == predict(split, profile).step_seconds


def test_sums_travel_there_and_back() -> None:
    both = assigned(whole(0, samples=1), whole(1, samples=1), owners=(0, 0))
    link = dataclasses.replace(FREE, latency_seconds=0.5)
    step = simulate(both, barrier(profile_of(cluster_of(2, link=link)), 0))
    assert spans_of(step, 1) == [
        # Weights take 0.5 s, each barrier 2 x 0.5 s.
        ("replica 1, forward 0 of a", 0.5, 1.5),
        ("replica 1, forward 0 of b", 3.5, 5.5),
        ("replica 1, backward 0 of b", 5.5, 9.5),
        ("replica 1, backward 0 of a", 9.5, 11.5),
    ]
    # One more barrier, and the way of the gradients to their owner.
    (update,) = [event for event in step.devices[0] if event.what == "update of a"]
    assert (update.begin_seconds, update.end_seconds) == (13.0, 13.5)


@pytest.mark.parametrize("place", [0, 1])
def test_a_pipeline_is_empty_at_a_barrier(place: int) -> None:
    profile = barrier(profile_of(cluster_of(2, link=FREE)), place, backward=0)
    pipe = assigned(pipeline(4, in_flight=4), owners=(0, 1))
    step = simulate(pipe, profile)
    found = predict(pipe, profile).slowest
    assert last_pass(step) == found.compute_seconds + found.bubble_seconds
    forwards = [event for event in step.devices[place] if event.kind == "forward"]
    assert all(event.end_seconds == two.begin_seconds for event, two in pairwise(forwards[:4]))


def test_nobody_meets_in_one_call_or_per_device() -> None:
    plain = profile_of(cluster_of(2))
    profile = barrier(plain, 0, waiting=16)
    alone = assigned(whole(0), owners=(0, 0))
    assert simulate(alone, profile) == simulate(alone, plain)
    plan = Plan.data_parallel(["gpu:0", "gpu:1"], batch_norm="per_device")
    separate = assignment_of(plan, profile.model, profile.cluster, 4)
    assert simulate(separate, profile) == simulate(separate, plain)


def test_what_waits_at_a_barrier_is_in_memory() -> None:
    pipe = assigned(pipeline(4), owners=(0, 1))
    peaks = [
        simulate(pipe, barrier(profile_of(cluster_of(2)), 1, waiting=waiting)).peak_bytes[1]
        for waiting in (0.0, 1600.0)
    ]
    assert peaks[1] > 4 * 1600 > peaks[0]


@settings(max_examples=60)
@given(barriers(cases()))
def test_no_step_is_faster_than_its_devices_compute(case: tuple[Assignment, CostProfile]) -> None:
    assignment, profile = case
    step = simulate(assignment, profile)
    has_barriers = step_has_barriers(assignment, profile.model)
    for replica in assignment.replicas:
        for span in replica.spans:
            passes = span_seconds(
                span, replica, assignment.recompute, profile, has_barriers=has_barriers
            )
            seconds = replica.num_micro_batches * sum(passes)
            computed = sum(
                event.end_seconds - event.begin_seconds
                for event in step.devices[span.device]
                if event.kind != "update"
            )
            assert computed == pytest.approx(seconds)
            assert step.step_seconds * ROUNDING >= seconds


@settings(max_examples=60)
@given(barriers(cases()))
def test_memory_is_within_the_prediction_and_free_at_the_end(
    case: tuple[Assignment, CostProfile],
) -> None:
    assignment, profile = case
    step, predicted = simulate(assignment, profile), predict(assignment, profile).memory
    for device, points in step.memory.items():
        # What is left is owned, and was there at the begin.
        assert points[-1].num_bytes <= points[0].num_bytes + 1
        assert step.peak_bytes[device] <= predicted[device].total * ROUNDING + 1


@settings(max_examples=100)
@given(barriers(cases()))
def test_replicas_of_one_stage_take_as_long_as_predicted(
    case: tuple[Assignment, CostProfile],
) -> None:
    assignment, profile = case
    last = len(profile.model.layers)
    replicas = tuple(
        dataclasses.replace(replica, spans=(Span(replica.spans[0].device, 0, last),))
        for replica in assignment.replicas
    )
    assignment = dataclasses.replace(assignment, replicas=replicas)
    profile = with_links(profile, factor=math.inf)
    if step_has_barriers(assignment, profile.model):
        wanted = seconds_with_barriers(assignment, profile)
        assert last_pass(simulate(assignment, profile)) == pytest.approx(wanted)


def test_pipelines_take_about_as_long_as_predicted() -> None:
    ratios: list[float] = []

    @settings(max_examples=200, database=None, derandomize=True)
    @given(barriers(pipelines()))
    def collect(case: tuple[Assignment, CostProfile]) -> None:
        assignment, profile = case
        profile = with_links(profile, factor=math.inf)
        if step_has_barriers(assignment, profile.model) and len(assignment.replicas[0].spans) > 1:
            wanted = seconds_with_barriers(assignment, profile)
            ratios.append(last_pass(simulate(assignment, profile)) / wanted)

    collect()
    assert len(ratios) > 50
    # What is drawn depends on the modules that were imported before; most are equal.
    assert statistics.median(ratios) == pytest.approx(1)
    # Those of which stages are of very unequal length, or few micro-batches are alive.
    assert 0.5 < min(ratios) <= max(ratios) < 2
