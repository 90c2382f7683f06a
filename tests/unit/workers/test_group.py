"""Groups of workers: states that are handed over, and views that end while members connect."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evener.errors import RunError
from evener.workers import connections
from evener.workers import late as network_module
from evener.workers.group import Group
from evener.workers.late import Point, State
from evener.workers.mesh import unpack
from evener.workers.messages import NOTHING, View
from workers.seats import Seats

_LIMIT = 600.0


@contextmanager
def recovering(
    seats: Seats, index: int, addresses: dict[int, str] | None = None, *, is_over: bool = False
) -> Iterator[Group]:
    """A worker enters the second view in a thread; the view ends, and it goes on alone.

    It does so long before any limit of a connection.
    """
    [first] = seats.views
    addresses, done = addresses or dict(first.addresses), {0: 0, 1: 0}
    second = View(number=2, members=(0, 1), addresses=addresses, done=done, joined=())

    def next_view(done: int, *, is_at_end: bool = False) -> View:
        own = {index: second.addresses[index]}
        # A number of its own for each: the end of one that was entered early is not that of all.
        number = member.view.number + 1
        member.view = View(
            number=number, members=(index,), addresses=own, done={index: done}, joined=()
        )
        return member.view

    member: Any = SimpleNamespace(view=second, next_view=next_view)
    group = Group(seats.jobs[index], member, seats.networks[index], first)
    if is_over:
        group.end_view()
    with ThreadPoolExecutor(1) as pool:
        recovered = pool.submit(group._recover, second)
        yield group
        # What a coordinator calls.
        group.end_view()
        recovered.result(timeout=60.0)
    assert group.view.members == (index,)
    group._mesh.close()


@pytest.fixture
def seats(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seats]:
    monkeypatch.setattr(connections, "_HANDSHAKE_SECONDS", _LIMIT)
    monkeypatch.setattr(network_module, "_CONNECT_SECONDS", _LIMIT)
    made = Seats(2, patience_seconds=_LIMIT)
    yield made
    for network in made.networks:
        network.close()


@pytest.mark.parametrize("index", [0, 1])
def test_the_view_is_over_before_its_members_connect(seats: Seats, index: int) -> None:
    with recovering(seats, index, is_over=True):
        pass


def test_the_other_worker_does_not_connect(seats: Seats) -> None:
    with recovering(seats, 1):
        time.sleep(0.2)


def test_the_other_worker_freezes_before_it_proves_itself(seats: Seats) -> None:
    with ExitStack() as open_ones:
        server = open_ones.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        with recovering(seats, 0, {0: "127.0.0.1:1", 1: f"127.0.0.1:{port}"}):
            open_ones.enter_context(server.accept()[0])


def test_the_other_worker_freezes_before_it_exchanges(seats: Seats) -> None:
    with ExitStack() as open_ones, recovering(seats, 0):
        frozen = seats.networks[1].take(2, 0, time.monotonic() + 20.0)
        assert open_ones.enter_context(frozen).recv(1)


def test_nobody_is_left_whose_state_a_replacement_could_take() -> None:
    """All others have ended while it was behind, and others begin anew with it."""
    member = SimpleNamespace(
        join=lambda: View(number=4, members=(0, 1), addresses={}, done={}, joined=(0, 1))
    )
    with pytest.raises(RunError, match=r"RUN-095[\s\S]*begins again"):
        Group.join(SimpleNamespace(_member=member))  # type: ignore[arg-type]


def test_who_has_no_state_gets_one_whatever_view_it_came_in() -> None:
    """Worker 1 missed the last call; worker 2 came in a view that was over at once; 3 is new."""
    sent: dict[int, np.ndarray] = {}
    giver = SimpleNamespace(
        index=0,
        point=Point(9, 0),
        _last_log=[[np.ones(2)]],
        variables=SimpleNamespace(values=lambda: ()),
        _mesh=SimpleNamespace(deliver=lambda label, parcels: sent.update(parcels) or {}),
        _done=5,
    )
    done = {0: 5, 1: 4, 2: NOTHING}
    view = View(number=3, members=(0, 1, 2, 3), addresses={}, done=done, joined=(3,))
    assert Group._hand_over(giver, view) is None  # type: ignore[arg-type]
    [[log]] = unpack(sent.pop(1))
    np.testing.assert_array_equal(log, np.ones(2))
    assert sorted(sent) == [2, 3]
    assert all(State.unpack(parcel).point == (9, 0) for parcel in sent.values())
