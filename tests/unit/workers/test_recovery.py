"""A view that ends while its members still connect."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from evener.workers.recovery import Recovery
from evener.workers.view import View
from workers.seats import Seats


class Membership:
    """Member of a job whose other worker is lost behind the second view.

    Args:
        view: The second view.
    """

    def __init__(self, view: View) -> None:
        self.view = view

    def next_view(self, done: int) -> View:
        """Return a view of this worker alone."""
        address = self.view.addresses[0]
        self.view = View(number=3, members=(0,), addresses={0: address}, done={0: done}, joined=())
        return self.view


@pytest.mark.parametrize("is_early", [True, False])
def test_a_view_that_is_over_keeps_nobody_waiting_for_its_members(is_early: bool) -> None:
    """The other worker is connected, and freezes before it says anything."""
    seats = Seats(2)
    [first] = seats.views
    second = View(number=2, members=(0, 1), addresses=first.addresses, done={0: 0, 1: 0}, joined=())
    member: Any = Membership(second)
    recovery = Recovery(seats.jobs[0], member, seats.listeners[0], first, patience_seconds=20.0)
    problems: list[BaseException] = []

    def recover() -> None:
        try:
            recovery._recover(second)
        except BaseException as error:
            problems.append(error)

    if is_early:
        recovery.end_view()
    thread = threading.Thread(target=recover, daemon=True)
    thread.start()
    frozen = seats.listeners[1].take(2, 0, time.monotonic() + 20.0)
    if not is_early:
        assert frozen.recv(1)  # The first worker waits for the answer.
        recovery.end_view()
    thread.join(60.0)
    assert not thread.is_alive()
    assert not problems
    assert recovery.view.members == (0,)
    frozen.close()
    recovery._mesh.close()
    for listener in seats.listeners:
        listener.close()
