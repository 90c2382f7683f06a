"""Seconds of the exchange, by hand: a has 100 bytes of weights, b has 60."""

from __future__ import annotations

import dataclasses

import pytest

from evener.planner.assignment import EACH_MACHINE, HOST_OWNER, Assignment, ReplicaAssignment, Span
from evener.planner.step_time import ExchangeSeconds, exchange_seconds
from evener.profile import Cluster
from unit.planner.by_hand import MODEL, assigned, cluster_of, whole


def both(seconds: float) -> ExchangeSeconds:
    return ExchangeSeconds(arrival=seconds, departure=seconds)


def travel(assignment: Assignment, cluster: Cluster) -> dict[int, ExchangeSeconds]:
    return dict(exchange_seconds(assignment, MODEL, cluster))


def test_each_direction_of_a_device_counts_for_itself() -> None:
    found = travel(assigned(whole(0), whole(1), owners=(0, 1)), cluster_of(2))
    # gpu:0 sends 100 bytes and receives 60, gpu:1 the other way round; 10 per second.
    assert found == {0: both(10.5), 1: both(10.5)}


def test_an_owner_sends_once_for_each_other_holder() -> None:
    found = travel(assigned(whole(0), whole(1), whole(2), owners=(0, 0)), cluster_of(3))
    assert found == {0: both(32.5), 1: both(16.5), 2: both(16.5)}


def test_gradients_may_be_more_than_weights() -> None:
    a, b = MODEL.layers
    model = dataclasses.replace(MODEL, layers=(dataclasses.replace(a, other_gradient_bytes=100), b))
    found = exchange_seconds(assigned(whole(0), whole(1), owners=(0, 1)), model, cluster_of(2))
    # gpu:1 sends 200 bytes of gradients of a, and gpu:0 receives them.
    assert dict(found) == dict.fromkeys((0, 1), ExchangeSeconds(arrival=10.5, departure=20.5))


def test_on_a_shared_link_all_bytes_of_the_machine_count() -> None:
    found = travel(assigned(whole(0), whole(1), owners=(0, 1)), cluster_of(2, shares_link=True))
    assert found == {0: both(16.5), 1: both(16.5)}


@pytest.mark.parametrize(("shares_link", "seconds"), [(False, 8.0), (True, 16.0)])
def test_what_the_host_owns_comes_over_its_link(shares_link: bool, seconds: float) -> None:
    cluster = cluster_of(2, shares_link=shares_link)
    found = travel(assigned(whole(0), whole(1), owners=(HOST_OWNER, HOST_OWNER)), cluster)
    assert found == {0: both(seconds), 1: both(seconds)}


def test_stages_that_own_what_they_compute_wait_for_nothing() -> None:
    replica = ReplicaAssignment(samples=2, spans=(Span(0, 0, 1), Span(1, 1, 2)))
    assert travel(assigned(replica, owners=(0, 1)), cluster_of(2)) == {0: both(0.0), 1: both(0.0)}
    # b's weights go from gpu:0 to gpu:1.
    assert travel(assigned(replica, owners=(0, 0)), cluster_of(2)) == {0: both(6.5), 1: both(6.5)}


def test_machines_with_variables_of_their_own_add_up_gradients_in_a_ring() -> None:
    owners = (EACH_MACHINE, EACH_MACHINE)
    found = travel(assigned(*map(whole, range(4)), owners=owners), cluster_of(2, 2))
    # Inside, half of 160 bytes; between, 2 x 160 x 1/2 at 4 per second.
    assert set(found.values()) == {ExchangeSeconds(arrival=8.5, departure=41.0)}


def test_a_machine_with_one_device_fetches_nothing_of_its_own_variables() -> None:
    owners = (EACH_MACHINE, EACH_MACHINE)
    found = travel(assigned(*map(whole, range(3)), owners=owners), cluster_of(1, 2))
    assert found[0] == ExchangeSeconds(arrival=0.0, departure=41.0)
    assert found[1] == found[2] == ExchangeSeconds(arrival=8.5, departure=41.0)


def test_a_ring_of_three_machines_moves_two_thirds_twice() -> None:
    owners = (EACH_MACHINE, EACH_MACHINE)
    found = travel(assigned(*map(whole, range(3)), owners=owners), cluster_of(1, 1, 1))
    wanted = 2 * 160 * 2 / 3 / 4 + 1.0
    assert [seconds.departure for seconds in found.values()] == pytest.approx([wanted] * 3)


def test_what_a_device_owns_goes_to_other_machines_as_often_as_it_is_held() -> None:
    found = travel(assigned(*map(whole, range(3)), owners=(0, 0)), cluster_of(1, 2))
    assert found[1] == found[2] == both(2 * 160 / 4 + 1.0)


def test_what_is_owned_in_another_machine_comes_over_the_network() -> None:
    found = travel(assigned(whole(1), owners=(0, 0)), cluster_of(1, 1))
    assert found == {1: both(160 / 4 + 1.0)}
