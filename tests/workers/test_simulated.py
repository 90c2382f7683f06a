"""Whole jobs under seeded schedules of deaths, freezes, cuts and ends, in simulation."""

from __future__ import annotations

from typing import Any

import pytest

from evener.workers import group
from evener.workers.late import Late, Point
from evener.workers.membership import Membership
from evener.workers.mesh import PeerLost
from workers import simulated
from workers.simulated import in_place

EVERYDAY, ALL = 1_000, 3_000


def stands(late: Late, point: Point) -> bool:
    return late.state is not None and point.calls == late.state.point.calls


def takes_state(own: Any) -> bool:
    late = own._late
    if late is None or not late.is_with_others(own.point):
        return late is None
    own.variables.assign(late.state.values)
    own._late = None
    return True


def joins(late: Late, joining: Any) -> None:
    late.state = joining.join()
    _, late._exchanged = late._member.look()


def recovers(own: Any, view: Any) -> None:
    recover(own, view)


def commits_alone(own: Any) -> None:
    own._call.num_commits += 1


def gives_up(own: Any) -> None:
    if own.collectives is not None:
        own._meet("commit")
    own._call.num_commits += 1


def commits_always(own: Any) -> None:
    if own.collectives is not None:
        try:
            own._meet("commit")
        except PeerLost:
            own._call.next_view = own._member.next_view(own._done)
            own._call.failure = None
    own._call.num_commits += 1


recover = group.Group._recover
PLANTED: dict[str, tuple[int, Any, str, Any]] = {
    "a state is taken behind the program's own assignments": (134, Late, "is_with_others", stands),
    "a worker that ends in mid-training has finished": (1, Membership, "_early", lambda own: []),
    "values that the program has not assigned yet are taken": (
        481,
        group.Group,
        "_is_with_others",
        takes_state,
    ),
    "the first worker hands over, however far it is": (
        263,
        group,
        "giver_of",
        lambda view: min(view.done),
    ),
    "results between two views are not fetched": (21, Late, "_join", joins),
    "exchanges of a call that others have finished are lost": (
        34,
        group.Group,
        "_recover",
        recovers,
    ),
    "a worker commits before all have the results": (917, group.Group, "commit", commits_alone),
    "a worker does not commit what another one has": (1657, group.Group, "commit", gives_up),
    "a worker commits what nobody has": (917, group.Group, "commit", commits_always),
}
"""Faults that evener had, or could have: a seed that finds each, and what is put in whose place."""


@pytest.mark.parametrize("kind", PLANTED)
def test_faults_are_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, owner, name, planted = PLANTED[kind]
    assert simulated.failures([seed]) == []
    monkeypatch.setattr(owner, name, planted)
    assert [found for found, _ in simulated.failures([seed])] == [seed]


# Four in which a replacement knows the carrier before those that it joins; one in which a worker
# that another one's commit has brought to the end of a step hands over its state; one in which a
# replacement hands over the exchanges of a call that was before it.
ONCE_FAILED = (1000962, 1005082, 1007707, 1010767, 1002912, 2012966)


def test_schedules() -> None:
    assert simulated.failures([*ONCE_FAILED, *range(EVERYDAY)]) == []


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_many_schedules(part: int) -> None:
    begin = 1_000_000 + part * ALL
    assert simulated.failures(range(begin, begin + ALL)) == []


def test_a_seed_is_a_schedule() -> None:
    logs: list[list[str]] = [[], []]
    with in_place():
        for log in logs:
            assert simulated.failure_of(10, log) is None
    assert logs[0] == logs[1]
    assert any("restart 1" in line for line in logs[0])
