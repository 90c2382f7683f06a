"""Predictions by hand: the time of a step, and the memory by kind of device and batch."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.clusters import model_named, model_names
from evener.plan import (
    Plan,
    ScheduleName,
)
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    ReplicaAssignment,
    Span,
    literal,
    plan_of,
)
from evener.planner.prediction import (
    MOST_SAMPLES,
    MemoryByKind,
    Way,
    estimate_memory,
    largest_batch,
    predict,
    predict_plan,
    recomputed_layers,
    update_seconds,
)
from evener.planner.step_time import span_seconds
from evener.profile import Cluster, ClusterDevice, CostProfile, Curve, LayerTimes, ModelCosts
from evener.schedule import (
    schedule_for,
    timeline,
)
from unit.planner.by_hand import FREE, MODEL, assigned, cluster_of, profile_of, whole


def test_data_parallel_on_free_links() -> None:
    profile = profile_of(cluster_of(2, link=FREE), overhead=0.125)
    found = predict(assigned(whole(0), whole(1, samples=1), owners=(0, 1)), profile)
    assert found.step_seconds == 2 * 9 + 0.5 + 0.125
    slow, fast = found.replicas
    assert found.slowest == slow
    assert (slow.compute_seconds, slow.bubble_seconds, slow.communication_seconds) == (18, 0, 0)
    assert (slow.update_seconds, fast.update_seconds) == (0.5, 0.25)
    assert slow.busy_seconds == (18,)
    assert (slow.timeline, fast.timeline) == (None, None)


def with_times(profile: CostProfile, **changed: Any) -> CostProfile:
    """Return a profile in which the times of all layers have other fields."""
    times = {
        name: tuple(dataclasses.replace(layer, **changed) for layer in of_type)
        for name, of_type in profile.times.items()
    }
    return dataclasses.replace(profile, times=times)


def test_what_computation_does_not_hide_of_weights_and_gradients_is_added() -> None:
    # Weights and gradients travel 10.5 s; a forward pass takes 6 s, a backward pass 12 s.
    replicas, profile = (whole(0), whole(1)), profile_of(cluster_of(2))
    found = predict(assigned(*replicas, owners=(0, 1)), profile).slowest
    assert found.communication_seconds == 10.5 - 6
    assert found.seconds == 18 + 4.5 + 0.5
    # Only the first and the last micro-batch hide them.
    twice = whole(0, num_micro_batches=2), whole(1, num_micro_batches=2)
    found = predict(assigned(*twice, owners=(0, 1)), profile).slowest
    assert found.communication_seconds == (10.5 - 3) + (10.5 - 6)
    # A ring between machines delays gradients alone.
    each = assigned(*replicas, owners=(EACH_MACHINE, EACH_MACHINE))
    assert predict(each, profile_of(cluster_of(1, 1))).slowest.communication_seconds == 41 - 12


def test_all_micro_batches_but_the_first_add_gradients_up() -> None:
    profile = with_times(profile_of(cluster_of(1)), accumulate_seconds=0.5)
    twice = whole(0, num_micro_batches=2)
    seconds = [
        predict(assigned(replica, owners=(0, 0), recompute=recompute), profile).slowest
        for replica, recompute in ((whole(0), False), (twice, False), (whole(0), True))
    ]
    # Two layers, one more micro-batch; a recomputed layer runs forward twice.
    assert [each.compute_seconds for each in seconds] == [18, 18 + 2 * 0.5, 18 + 2 * 2]


@pytest.mark.parametrize(("recompute", "live"), [(False, 1), (True, 3)])
def test_one_stage_keeps_several_micro_batches_only_to_recompute(
    recompute: bool, live: int
) -> None:
    replica = whole(0, samples=4, num_micro_batches=4, in_flight=3)
    found = predict(
        assigned(replica, owners=(0, 0), recompute=recompute), profile_of(cluster_of(1))
    )
    # Samples of 1 byte are there from the begin.
    # In one call, those of the second layer are gone in the backward pass of the first.
    assert found.memory[0].activations == live * (6 if recompute else 4) + 4


def test_updates_of_hosts_and_of_machines() -> None:
    profile = profile_of(cluster_of(1, 2))
    replicas = [whole(k) for k in range(3)]
    shared = assigned(*replicas, owners=(EACH_MACHINE, EACH_MACHINE))
    assert update_seconds(shared, profile) == {0: 0.75, 1: 0.375, 2: 0.375}
    # 2 x (310 + 180) bytes of variables and 160 of gradients, at 1140 per second; before that,
    # three sums of 160 bytes are read and one is written.
    host = assigned(*replicas, owners=(HOST_OWNER, HOST_OWNER))
    took = 1.0 + 4 * 160 / 1140
    assert update_seconds(host, profile) == pytest.approx({HOST_OWNER: took})
    found = predict(host, profile)
    assert [replica.update_seconds for replica in found.replicas] == pytest.approx([took] * 3)


def test_an_owner_adds_up_what_the_other_devices_send() -> None:
    profile = with_times(profile_of(cluster_of(3)), accumulate_seconds=0.5)
    replicas = [whole(k) for k in range(3)]
    found = update_seconds(assigned(*replicas, owners=(0, 1)), profile)
    assert found == {0: 0.5 + 2 * 0.5, 1: 0.25 + 2 * 0.5}
    # Of one sum, nothing is added up.
    alone = update_seconds(assigned(whole(0), owners=(0, 1)), profile)
    assert alone == {0: 0.5, 1: 0.25}


def test_passes_are_two_calls_in_all_stages_but_the_last() -> None:
    separate = with_times(profile_of(cluster_of(2)), backward_separate=Curve(((1, 10.0),)))
    first, last = Span(0, 0, 1), Span(1, 1, 2)
    replica = ReplicaAssignment(samples=1, spans=(first, last))
    nothing, some = (False, False), (False, True)
    assert span_seconds(first, replica, nothing, separate) == (1.0, 10.0)
    assert span_seconds(last, replica, nothing, separate) == (2.0, 4.0)
    # Where anything is computed again, no two passes are one call; what is, is in the backward one.
    assert span_seconds(first, replica, some, separate) == (1.0, 10.0)
    assert span_seconds(last, replica, some, separate) == (2.0, 4.0 + 2.0)
    assert span_seconds(Span(0, 0, 2), whole(0, samples=1), nothing, separate) == (3.0, 6.0)


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(["1f1b", "gpipe"]), st.booleans())
def test_a_pipeline_takes_as_long_as_its_timetable(
    num_micro_batches: int, in_flight: int, schedule: ScheduleName, is_free: bool
) -> None:
    profile = profile_of(cluster_of(2, link=FREE) if is_free else cluster_of(2))
    replica = ReplicaAssignment(
        samples=2 * num_micro_batches,
        spans=(Span(0, 0, 1), Span(1, 1, 2)),
        num_micro_batches=num_micro_batches,
        in_flight=min(in_flight, num_micro_batches),
        schedule=schedule,
    )
    assignment = assigned(replica, owners=(0, 1))
    (staged,) = plan_of(assignment, profile.model, profile.cluster).replicas
    wanted = timeline(
        schedule_for(staged),
        # A pass of 2 samples.
        lambda task: 2.0 * (task.stage + 1) * (1 if task.kind == "forward" else 2),
        # 2 bytes for each of 2 samples.
        transfer=lambda task, needed: (
            0.0 if is_free or task.stage == needed.stage else 4 / 10 + 0.5
        ),
    )
    found = predict(assignment, profile)
    assert found.step_seconds == pytest.approx(wanted.makespan + 0.5)
    assert found.slowest.compute_seconds == 12.0 * num_micro_batches
    assert found.replicas[0].timeline is not None
    assert found.replicas[0].timeline.peak_live == wanted.peak_live


def test_replicas_that_are_alike_are_predicted_alike() -> None:
    profile = profile_of(cluster_of(3, link=FREE))
    found = predict(assigned(*(whole(k) for k in range(3)), owners=(0, 1)), profile)
    # They differ by what they own.
    assert [replica.update_seconds for replica in found.replicas] == [0.5, 0.25, 0.0]
    assert len({dataclasses.replace(replica, update_seconds=0) for replica in found.replicas}) == 1


WAYS = [
    Way(num_micro_batches=count, recompute=recompute)
    for count in (1, 2, 8)
    for recompute in (False, True)
]


def predicted(model: ModelCosts, batch_size: int, way: Way, num_devices: int) -> list[int]:
    """Return the bytes of each device as `predict` says them of the same plan."""
    names = [f"gpu:{k}" for k in range(num_devices)]
    plan = Plan.data_parallel(names, num_micro_batches=way.num_micro_batches)
    if way.recompute:
        layers = zip(model.layers, recomputed_layers(model), strict=True)
        recompute = tuple(literal(layer.name) for layer, is_recomputed in layers if is_recomputed)
        plan = dataclasses.replace(plan, recompute=recompute)
    times = LayerTimes(forward=Curve(((1, 1.0),)), backward=Curve(((1, 1.0),)))
    profile = CostProfile(
        model=model,
        cluster=Cluster(devices=tuple(ClusterDevice(name=name, type="one") for name in names)),
        times={"one": (times,) * len(model.layers)},
    )
    found = predict_plan(plan, profile, batch_size).memory
    return [found[place].total for place in range(num_devices)]


def test_each_kind_by_hand() -> None:
    assert estimate_memory(MODEL, 6) == MemoryByKind(
        weights=160,
        optimizer_state=320,
        other_variables=10,
        fetched=0,
        gradients=160,
        activations=(4 + 8) * 6,
        samples=6,
        workspace=3 * 6,
    )
    assert estimate_memory(MODEL, 6).total == 160 + 320 + 10 + 160 + 72 + 6 + 18


def test_the_fullest_device_of_two_by_hand() -> None:
    # gpu:0 owns a, the larger of the layers: its gradient of now, gpu:1's, and those that wait as
    # far as they have no place of b's weights, which are gone then.
    assert estimate_memory(MODEL, 6, num_devices=2) == MemoryByKind(
        weights=100,
        optimizer_state=200,
        other_variables=10,
        fetched=60,
        gradients=3 * 100 - 60,
        activations=4 * 3,
        samples=3,
        workspace=(3 + 2) * 3,
    )


@pytest.mark.parametrize(
    ("name", "num_devices"),
    [
        *itertools.product(model_names(), [1]),
        *itertools.product(["bert-large-128", "resnet-50"], [2, 3, 8]),
    ],
)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_fullest_device_needs_what_is_predicted(name: str, way: Way, num_devices: int) -> None:
    model = model_named(name).costs
    wanted = max(predicted(model, 16 * num_devices, way, num_devices))
    found = estimate_memory(model, 16 * num_devices, way, num_devices=num_devices)
    # The parts are rounded one by one.
    assert abs(found.total - wanted) <= 4


def test_the_largest_micro_batch_counts() -> None:
    way = Way(num_micro_batches=4)
    assert estimate_memory(MODEL, 10, way) == estimate_memory(MODEL, 12, way)
    assert estimate_memory(MODEL, 3, way) == estimate_memory(MODEL, 4, way)
    assert estimate_memory(MODEL, 7, num_devices=2) == estimate_memory(MODEL, 8, num_devices=2)
    assert estimate_memory(MODEL, 1, num_devices=8) == estimate_memory(MODEL, 1)


def test_layers_that_keep_less_than_they_read_are_not_recomputed() -> None:
    a, b = MODEL.layers
    model = dataclasses.replace(MODEL, layers=(a, dataclasses.replace(b, activation_bytes=2)))
    assert [recomputed_layers(each) for each in (MODEL, model)] == [(True, True), (True, False)]


@pytest.mark.parametrize("num_devices", [1, 2, 5])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("memory", [0, 400, 700, 746, 747, 10_000, 100_000])
def test_the_largest_batch_is_the_last_that_fits(memory: int, way: Way, num_devices: int) -> None:
    batch = largest_batch(MODEL, memory, way, num_devices=num_devices)
    at_once = num_devices * way.num_micro_batches
    assert batch % at_once == 0
    if batch:
        found = estimate_memory(MODEL, batch, way, num_devices=num_devices)
        assert found.total <= memory
    more = estimate_memory(MODEL, batch + at_once, way, num_devices=num_devices)
    assert more.total > memory


def test_batches_end_where_planning_does() -> None:
    assert largest_batch(MODEL, 2**60) == MOST_SAMPLES
    found = largest_batch(MODEL, 2**60, Way(num_micro_batches=3))
    assert found == 3 * math.floor(MOST_SAMPLES / 3)
