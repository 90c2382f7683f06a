"""Small changes to a plan."""

from __future__ import annotations

import dataclasses

import pytest

from evener.planner.assignment import HOST_OWNER, Assignment, ReplicaAssignment, Span
from evener.planner.candidates import polish


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


def test_samples_move_to_another_replica() -> None:
    found = polish(
        assigned(whole(0, 2), whole(1, 6)),
        lambda assignment: max(assignment.replicas[0].samples, 3 * assignment.replicas[1].samples),
        [1],
        host=False,
    )
    assert [replica.samples for replica in found.replicas] == [6, 2]


def test_no_replica_loses_its_last_sample() -> None:
    found = polish(
        assigned(whole(0, 2), whole(1, 2)),
        lambda assignment: 10.0 + assignment.replicas[1].samples,
        [1],
        host=False,
    )
    assert [replica.samples for replica in found.replicas] == [3, 1]


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
