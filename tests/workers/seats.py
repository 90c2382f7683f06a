"""Membership of workers that are threads of one process, in place of a coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from evener.workers.job import Job
from evener.workers.late import Network
from evener.workers.messages import View

SECRET = b"secret of the tests"
PATIENCE_SECONDS = 60.0


class Seats:
    """Workers that are there, and the views that they form."""

    def __init__(self, count: int, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.count = count
        self.jobs = [job_of(index, count, patience_seconds) for index in range(count)]
        self.networks = [Network(job, "127.0.0.1") for job in self.jobs]
        self.views: list[View] = []
        self._changed = threading.Condition()
        self._alive = set(range(count))
        self._stopped: dict[int, int] = {}
        self._left: set[int] = set()
        self._given: dict[str, dict[int, Any]] = {}
        self._ends: dict[int, Callable[[], None]] = {}
        with self._changed:
            self._form()

    @property
    def is_over(self) -> bool:
        with self._changed:
            return not self._alive >= set(self.views[-1].members)

    def when_over(self, index: int, end_view: Callable[[], None]) -> None:
        """Call a function of a worker when a view is over."""
        self._ends[index] = end_view

    def lose(self, index: int) -> None:
        self._end_views(index)
        with self._changed:
            self._alive.discard(index)
            self._stopped.pop(index, None)
            self._left.discard(index)
            self._changed.notify_all()

    def next_view(self, index: int, done: int) -> View:
        """Return the next view, when all workers that are there have stopped."""
        return self._stop(index, done, leaves=False)  # type: ignore[return-value]

    def leave(self, index: int, done: int) -> View | None:
        """Return None when all have finished, or another view if one of them needs this worker."""
        return self._stop(index, done, leaves=True)

    def exchange(self, index: int, key: str, value: Any) -> list[Any]:
        """Return the values of all workers."""
        with self._changed:
            given = self._given.setdefault(key, {})
            given[index] = value
            self._changed.notify_all()
            self._wait(lambda: self._alive <= set(given))
            return [given[worker] for worker in sorted(self._alive)]

    def _end_views(self, index: int) -> None:
        """Tell the others that the view of a worker is over.

        Before the worker stops or is lost: without it, they cannot have formed the next view, which
        would be ended in place of this one.
        """
        with self._changed:
            others = sorted(self._alive - {index})
        for other in others:
            if other in self._ends:
                self._ends[other]()

    def _stop(self, index: int, done: int, *, leaves: bool) -> View | None:
        number = self.views[-1].number
        if not leaves:
            self._end_views(index)
        with self._changed:
            self._stopped[index] = done
            if leaves:
                self._left.add(index)
            self._changed.notify_all()
            self._wait(
                lambda: (
                    self.views[-1].number > number
                    or (leaves and self._left >= self._alive)
                    or set(self._stopped) >= self._alive
                )
            )
            if self.views[-1].number == number:
                if self._left >= self._alive:
                    return None
                self._form()
            return self.views[-1]

    def _form(self) -> None:
        self.views.append(
            View(
                number=len(self.views) + 1,
                members=tuple(sorted(self._alive)),
                addresses={k: f"127.0.0.1:{self.networks[k].port}" for k in self._alive},
                done=dict(self._stopped),
                joined=(),
            )
        )
        self._stopped.clear()
        self._left.clear()
        self._changed.notify_all()

    def _wait(self, is_there: Callable[[], bool]) -> None:
        if not self._changed.wait_for(is_there, PATIENCE_SECONDS):
            raise TimeoutError(f"alive {self._alive}, stopped {self._stopped}, left {self._left}")


class Seat:
    """A worker's side of `Seats`, in place of `evener.workers.member.Member`."""

    def __init__(self, seats: Seats, index: int) -> None:
        self._seats = seats
        self._index = index

    @property
    def view(self) -> View:
        return self._seats.views[-1]

    def next_view(self, done: int, *, is_at_end: bool = False) -> View:
        return self._seats.next_view(self._index, done)

    def leave(self, done: int, state: Any) -> View | None:
        return self._seats.leave(self._index, done)

    def exchange(self, key: str, value: Any, timeout_seconds: float) -> list[Any]:
        return self._seats.exchange(self._index, key, value)

    def close(self) -> None:
        """Do nothing: a seat has no connection."""


def job_of(index: int, count: int, patience_seconds: float = PATIENCE_SECONDS) -> Job:
    return Job(
        index=index,
        count=count,
        coordinator="127.0.0.1:1",
        secret=SECRET,
        hosts_coordinator=False,
        host="127.0.0.1",
        incarnation=0,
        heartbeat_seconds=10.0,
        start_seconds=60.0,
        patience_seconds=patience_seconds,
    )
