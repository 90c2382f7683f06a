"""Seconds of a step by hand: the exchange of weights, and barriers in mid-model.

A sample takes 1 + 2 s forward and 2 + 4 s backward; a has 100 bytes of weights, b has 60.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest

from evener.plan import Plan
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    assignment_of,
    plan_of,
)
from evener.planner.prediction import predict
from evener.planner.step_time import (
    ExchangeSeconds,
    Phase,
    exchange_seconds,
    phase_seconds,
    phases_of,
)
from evener.profile import Cluster, CostProfile, Curve, LayerCosts, LayerTimes
from unit.planner.by_hand import (
    FREE,
    MODEL,
    assigned,
    barrier,
    cluster_of,
    pipeline,
    profile_of,
    whole,
)

HOSTED, EACH_OWN = (HOST_OWNER, HOST_OWNER), (EACH_MACHINE, EACH_MACHINE)


def travel(
    devices: Sequence[int], owners: tuple[int, int], cluster: Cluster
) -> Mapping[int, ExchangeSeconds]:
    """Return the seconds of each device, of whole replicas on some devices."""
    return exchange_seconds(assigned(*map(whole, devices), owners=owners), MODEL, cluster)


@pytest.mark.parametrize(
    ("devices", "owners", "cluster", "seconds"),
    [
        # gpu:0 sends 100 bytes and receives 60, gpu:1 the other way round; 10 per second.
        ([0, 1], (0, 1), cluster_of(2), [10.5, 10.5]),
        # An owner sends once for each other holder.
        ([0, 1, 2], (0, 0), cluster_of(3), [32.5, 16.5, 16.5]),
        ([0, 1], (0, 1), cluster_of(2, shares_link=True), [16.5, 16.5]),
        ([0, 1], HOSTED, cluster_of(2), [8.0, 8.0]),
        ([0, 1], HOSTED, cluster_of(2, shares_link=True), [16.0, 16.0]),
        # Over the network, as often as it is held there.
        ([0, 1, 2], (0, 0), cluster_of(1, 2), [2 * 160 / 4 + 1.0] * 3),
        ([1], (0, 0), cluster_of(1, 1), [160 / 4 + 1.0]),
    ],
)
def test_weights_arrive_and_gradients_leave(
    devices: list[int], owners: tuple[int, int], cluster: Cluster, seconds: list[float]
) -> None:
    found = travel(devices, owners, cluster)
    both = (ExchangeSeconds(arrival=each, departure=each) for each in seconds)
    assert dict(found) == dict(zip(devices, both, strict=True))


@pytest.mark.parametrize(("owners", "seconds"), [((0, 1), 0.0), ((0, 0), 6.5)])
def test_stages_wait_for_the_weights_that_they_do_not_own(
    owners: tuple[int, int], seconds: float
) -> None:
    found = exchange_seconds(assigned(pipeline(2), owners=owners), MODEL, cluster_of(2))
    both = ExchangeSeconds(arrival=seconds, departure=seconds)
    assert dict(found) == {0: both, 1: both}


@pytest.mark.parametrize(
    ("counts", "arrivals", "departure"),
    [
        # Inside, half of 160 bytes; between, 2 x 160 x 1/2 at 4 per second.
        ((2, 2), [8.5] * 4, 41.0),
        # A machine with one device fetches nothing of its own variables.
        ((1, 2), [0.0, 8.5, 8.5], 41.0),
        ((1, 1, 1), [0.0] * 3, 2 * 160 * 2 / 3 / 4 + 1.0),
    ],
)
def test_machines_with_variables_of_their_own_add_up_gradients_in_a_ring(
    counts: tuple[int, ...], arrivals: list[float], departure: float
) -> None:
    found = travel(range(sum(counts)), EACH_OWN, cluster_of(*counts)).values()
    assert [seconds.arrival for seconds in found] == arrivals
    assert [seconds.departure for seconds in found] == pytest.approx([departure] * len(arrivals))


def test_gradients_may_be_more_than_weights() -> None:
    a, b = MODEL.layers
    model = dataclasses.replace(MODEL, layers=(dataclasses.replace(a, other_gradient_bytes=100), b))
    found = exchange_seconds(assigned(whole(0), whole(1), owners=(0, 1)), model, cluster_of(2))
    # gpu:1 sends 200 bytes of gradients of a, and gpu:0 receives them.
    assert dict(found) == dict.fromkeys((0, 1), ExchangeSeconds(arrival=10.5, departure=20.5))


def test_phases_end_at_barriers() -> None:
    norm = LayerCosts(name="norm", forward_barriers=2, backward_barriers=1)
    layers = [LayerCosts(name="a"), norm, LayerCosts(name="b"), norm, LayerCosts(name="c")]
    assert phases_of(layers) == [
        Phase(range(2), range(0), 1, 2),
        Phase(range(2, 4), range(0), 3, 2),
        Phase(range(4, 5), range(3, 5), 3, 1),
        Phase(range(0), range(1, 3), 1, 1),
        Phase(range(0), range(1)),
    ]
    assert phases_of(layers[:1]) == [Phase(range(1), range(1))]


def test_replicas_wait_for_the_slowest_of_each_phase() -> None:
    profile = barrier(profile_of(cluster_of(2, link=FREE)), 0)
    other = tuple(
        LayerTimes(forward=Curve(((1, f),)), backward=Curve(((1, b),)))
        for f, b in ((4.0, 2.0), (1.0, 2.0))
    )
    devices = list(profile.cluster.devices)
    devices[1] = dataclasses.replace(devices[1], type="other")
    cluster = dataclasses.replace(profile.cluster, devices=tuple(devices))
    times = {**profile.times, "other": other}
    profile = dataclasses.replace(profile, cluster=cluster, times=times)
    both = assigned(whole(0, samples=1), whole(1, samples=1), owners=(0, 0))
    found = predict(both, profile)
    # 1 and 4 s up to the barrier, 2 + 4 + 2 and 1 + 2 + 2 s behind it: each alone takes 9 s.
    assert [replica.compute_seconds + replica.bubble_seconds for replica in found.replicas] == [
        12,
        12,
    ]
    assert [replica.compute_seconds for replica in found.replicas] == [9, 9]
    assert found.step_seconds == 12 + 0.5 + 0.25


def test_sums_travel_there_and_back_at_each_barrier() -> None:
    near = barrier(profile_of(cluster_of(2, link=FREE)), 0)
    # Of the link that is slow in bytes too, 3 barriers take 2 x 0.5 s each.
    far = barrier(profile_of(cluster_of(2)), 0)
    both = assigned(whole(0, samples=1), whole(1, samples=1), owners=(0, 0))
    seconds = [
        replica.compute_seconds + replica.bubble_seconds
        for replica in (predict(both, near).slowest, predict(both, far).slowest)
    ]
    assert seconds == [9, 9 + 3 * 2 * 0.5]


def test_nobody_meets_in_a_step_that_is_one_call_or_where_devices_normalize_by_themselves() -> None:
    profile = profile_of(cluster_of(1))
    alone = assigned(whole(0), owners=(0, 0))
    assert predict(alone, barrier(profile, 0, waiting=16)) == predict(alone, profile)
    profile = profile_of(cluster_of(2))
    plan = Plan.data_parallel(["gpu:0", "gpu:1"], batch_norm="per_device")
    separate = assignment_of(plan, profile.model, profile.cluster, 4)
    assert not separate.has_barriers
    assert predict(separate, barrier(profile, 0, waiting=16)) == predict(separate, profile)
    assert plan_of(separate, profile.model, profile.cluster).batch_norm == "per_device"


def test_a_pipeline_is_empty_at_a_barrier() -> None:
    profile = barrier(profile_of(cluster_of(2, link=FREE)), 0, backward=0)
    replica = pipeline(4, in_flight=4)
    found = predict(assigned(replica, owners=(0, 1)), profile).slowest
    # Four forward passes of the first stage; then 2, and 4 + 2 for each stage's rest of it.
    rest = (2 + 4 + 2) + 3 * 6
    assert found.compute_seconds + found.bubble_seconds == 4 * 1 + rest
    without = predict(assigned(replica, owners=(0, 1)), profile_of(profile.cluster)).slowest
    assert found.seconds > without.seconds


def test_transfers_count_in_the_phases_that_cross_a_cut() -> None:
    profile = barrier(profile_of(cluster_of(2)), 0, backward=0)
    first, rest = phases_of(profile.model.layers)
    nothing = (False, False)
    assert phase_seconds(first, pipeline(2), nothing, profile) == 2 * 1
    # 2 bytes at 10 per second and 0.5 s, there and back.
    once = 2 + 4 + 2 + 2 * 0.7
    assert phase_seconds(rest, pipeline(2), nothing, profile) == pytest.approx(once + 6)


def test_passes_that_a_barrier_parts_are_two_calls() -> None:
    profile = profile_of(cluster_of(1))
    times = {
        "one": tuple(
            dataclasses.replace(layer, backward_separate=Curve(((1, 10.0),)))
            for layer in profile.times["one"]
        )
    }
    profile = barrier(dataclasses.replace(profile, times=times), 0)
    replica = whole(0, samples=2, num_micro_batches=2)
    found = predict(assigned(replica, owners=(0, 0)), profile).slowest
    # Layer a: 1 and 10 s; layer b behind the barrier is one call of 2 + 4 s.
    assert found.compute_seconds + found.bubble_seconds == 2 * (1 + 10 + 2 + 4)


def activations(profile: CostProfile, assignment: Assignment) -> list[float]:
    found = predict(assignment, profile)
    return [found.memory[device].activations for device in (0, 1)]


def test_all_micro_batches_are_alive_up_to_the_last_barrier() -> None:
    plain = profile_of(cluster_of(2))
    pipe = assigned(pipeline(4), owners=(0, 1))
    # Of a micro-batch, the first stage keeps 4 bytes and all samples, the second 8 + 2.
    assert activations(plain, pipe) == [2 * 4 + 4, 1 * 10]
    assert activations(barrier(plain, 0), pipe) == [4 * 5, 1 * 10]
    assert activations(barrier(plain, 1), pipe) == [4 * 5, 4 * 10]
    assert activations(barrier(plain, 1, waiting=16), pipe) == [4 * 5, 4 * (10 + 16)]
    # On one device, 8 samples of layer a and of the input; 2 of layer b.
    split = assigned(whole(0, samples=8, num_micro_batches=4), owners=(0, 0))
    found = predict(split, barrier(profile_of(cluster_of(1)), 0)).memory[0]
    assert found.activations == 8 * (4 + 1) + 2 * 8
