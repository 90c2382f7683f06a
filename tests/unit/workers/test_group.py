"""Groups of workers: states that are handed over, and views that end while members connect."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evener.errors import RunError
from evener.workers import connections
from evener.workers import late as network_module
from evener.workers.group import Group
from evener.workers.late import Network, Point, State
from evener.workers.mesh import unpack
from evener.workers.messages import NOTHING, View
from workers.seats import Seats

_LIMIT = 600.0


class Membership:
    """Membership of a worker that is alone behind the second view.

    A coordinator tells the end of a view by `Group.end_view`.
    """

    def __init__(self, index: int, view: View) -> None:
        self._index = index
        self.view = view

    def next_view(self, done: int, *, is_at_end: bool = False) -> View:
        own = self._index
        addresses = {own: self.view.addresses[own]}
        self.view = View(number=3, members=(own,), addresses=addresses, done={own: done}, joined=())
        return self.view


class Worker:
    """Worker that enters the second view in a thread, which ends meanwhile."""

    def __init__(self, seats: Seats, index: int, addresses: dict[int, str] | None = None) -> None:
        [first] = seats.views
        self._second = View(
            number=2,
            members=(0, 1),
            addresses=addresses or dict(first.addresses),
            done={0: 0, 1: 0},
            joined=(),
        )
        member: Any = Membership(index, self._second)
        self._index = index
        self._problems: list[BaseException] = []
        job = seats.jobs[index]
        network = Network(job, seats.listeners[index], patience_seconds=_LIMIT)
        self.recovery = Group(job, member, network, first)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.recovery._recover(self._second)
        except BaseException as error:
            self._problems.append(error)

    def begin(self) -> None:
        self._thread.start()

    def check_end(self) -> None:
        """Check that it goes on alone, long before any limit of a connection."""
        self._thread.join(60.0)
        assert not self._thread.is_alive()
        assert not self._problems
        assert self.recovery.view.members == (self._index,)
        self.recovery._mesh.close()


@pytest.fixture
def seats(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seats]:
    monkeypatch.setattr(connections, "_HANDSHAKE_SECONDS", _LIMIT)
    monkeypatch.setattr(network_module, "_CONNECT_SECONDS", _LIMIT)
    made = Seats(2)
    yield made
    for listener in made.listeners:
        listener.close()


@pytest.mark.parametrize("index", [0, 1])
def test_the_view_is_over_before_its_members_connect(seats: Seats, index: int) -> None:
    worker = Worker(seats, index)
    worker.recovery.end_view()
    worker.begin()
    worker.check_end()


def test_the_other_worker_does_not_connect(seats: Seats) -> None:
    worker = Worker(seats, 1)
    worker.begin()
    time.sleep(0.2)
    worker.recovery.end_view()
    worker.check_end()


def test_the_other_worker_freezes_before_it_proves_itself(seats: Seats) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        worker = Worker(seats, 0, {0: "127.0.0.1:1", 1: f"127.0.0.1:{port}"})
        worker.begin()
        with server.accept()[0]:
            worker.recovery.end_view()
            worker.check_end()


def test_the_other_worker_freezes_before_it_exchanges(seats: Seats) -> None:
    worker = Worker(seats, 0)
    worker.begin()
    with seats.listeners[1].take(2, 0, time.monotonic() + 20.0) as frozen:
        assert frozen.recv(1)
        worker.recovery.end_view()
        worker.check_end()


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
