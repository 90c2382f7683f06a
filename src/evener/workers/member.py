"""A worker's side of the membership: it connects, appears, joins, exchanges and leaves."""

from __future__ import annotations

import contextlib
import copy
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from evener.errors import RunError
from evener.workers import faults, messages
from evener.workers.connections import Channel, NoPeer, WrongSecret, introduce, start_thread
from evener.workers.job import Job, split_address

_LONGEST_PAUSE = 1.0
_ANSWER_SECONDS = 5.0


def connect(job: Job, closed: threading.Event) -> Channel:
    """Return a channel to the coordinator; retry for ``start_seconds``, or until ``closed``."""
    address, seconds = job.coordinator, job.start_seconds
    deadline, pause = time.monotonic() + seconds, 0.1
    while True:
        left = min(max(deadline - time.monotonic(), 0.01), _ANSWER_SECONDS)
        try:
            return _dial(job, left)
        except WrongSecret:
            raise RunError(
                "RUN-062",
                f"The coordinator at {address} has another secret.",
                why="only processes with the secret of the job may join it.",
                fix="set EVENER_JOB_SECRET to the same text on all workers.",
            ) from None
        except NoPeer as error:
            raise RunError(
                "RUN-063",
                f"The program that answers at {address} is no coordinator of evener.",
                why="its answer has another form.",
                fix="correct the address of the coordinator, or choose a port that is free.",
            ) from error
        except OSError as error:
            reason = getattr(error, "strerror", None) or str(error) or "the connection closed"
        if time.monotonic() + pause >= deadline:
            raise RunError(
                "RUN-061",
                f"The coordinator at {address} is not reached within {seconds:g} seconds.",
                why=f"{reason}.",
                fix="check that its process runs, that the address is right, and that no firewall "
                "is between.",
            )
        if closed.wait(pause):
            raise faults.closed(job.index)
        pause = min(1.5 * pause, _LONGEST_PAUSE)


def _dial(job: Job, seconds: float) -> Channel:
    connected = socket.create_connection(split_address(job.coordinator, "coordinator"), seconds)
    try:
        if connected.getsockname() == connected.getpeername():
            # TCP connects a port to itself where nothing listens and the system drew the same port.
            raise ConnectionRefusedError("nothing listens there")
        introduce(connected, job.secret)
        return Channel(connected, send_seconds=job.heartbeat_seconds)
    except BaseException:
        connected.close()
        raise


class Member:
    """Membership of this process in a job.

    ``join`` gives the first view. When the view is over, or the membership, ``on_view_over`` is
    called in the thread that receives, and the worker comes to ``next_view`` at the end of a step.
    All methods but ``close`` wait for other workers; each raises the error of the job as soon as
    there is one. The entry ``"same"`` of ``facts``, a JSON object, holds those that must be equal
    on all workers.
    """

    def __init__(
        self,
        job: Job,
        *,
        address: str,
        facts: Mapping[str, Any],
        on_view_over: Callable[[], None],
    ) -> None:
        self._job = job
        self._hello = messages.Hello(
            index=job.index,
            count=job.count,
            incarnation=job.incarnation,
            address=address,
            facts=dict(facts),
        )
        self._on_view_over = on_view_over
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._channel: Channel | None = None
        # A thread on a connection of its own, while a replacement has not joined yet.
        self._presence: threading.Thread | None = None
        self._has_joined = threading.Event()
        self._threads: list[threading.Thread] = []
        self._view: messages.View | None = None
        self._may_go = False
        self._failure: Exception | None = None
        # Exchanges of this process that wait, and their answers once they are there.
        self._answers: dict[tuple[int, str], Mapping[str, Any] | None] = {}

    @property
    def view(self) -> messages.View:
        assert self._view is not None, "the worker has not joined"
        return self._view

    def appear(self) -> None:
        assert self._presence is None, "a member appears once"
        channel = connect(self._job, self._closed)
        channel.send(messages.Appear(index=self._job.index, incarnation=self._job.incarnation))

        def beat() -> None:
            # A connection that is lost is the coordinator's to judge.
            with contextlib.suppress(OSError):
                while not self._has_joined.wait(self._job.heartbeat_seconds / messages.BEATS):
                    channel.send(messages.Beat())
            channel.close()

        self._presence = start_thread("evener-presence-beat", beat)

    def look(self) -> tuple[messages.View | None, dict[str, list[Any]]]:
        """Return the newest view and the values of all exchanges so far, by key, before joining."""
        channel = connect(self._job, self._closed)
        try:
            channel.send(messages.Look())
            if not channel.poll(self._job.start_seconds):
                raise faults.coordinator_gone(self._job.coordinator, "it does not answer")
            past = channel.receive()
        except (OSError, EOFError) as error:
            raise faults.coordinator_gone(self._job.coordinator, "its connection closed") from error
        finally:
            channel.close()
        if past["is_over"]:
            raise faults.job_over(self._job.index)
        view = None if past["view"] is None else messages.View.from_json(past["view"])
        return view, past["exchanged"]

    def join(self) -> messages.View:
        assert self._channel is None, "a member joins once"
        self._channel = connect(self._job, self._closed)
        self._threads = [
            start_thread("evener-member_receive", self._receive),
            start_thread("evener-member_beat", self._beat),
        ]
        self._send(self._hello)
        view = self._view_after(0)
        self._end_presence()
        return view

    def exchange(self, key: str, value: Any, timeout_seconds: float) -> list[Any]:
        """Give a JSON value, and return the values of all members in their order.

        The key is the same on all members. `ViewOver` is raised if the view is over, RUN-069 if a
        member does not come in time, RUN-075 if this worker waits under the same key already.
        """
        view = self.view.number
        slot = (view, key)
        with self._changed:
            if slot in self._answers:
                raise faults.exchanged_twice(self._job.index, key)
            self._answers[slot] = None
        try:
            self._send(
                messages.Exchange(view=view, key=key, value=value, timeout_seconds=timeout_seconds)
            )
            with self._changed:
                self._wait_for(lambda: self._answers[slot] is not None)
                answer = self._answers[slot]
        finally:
            with self._changed:
                del self._answers[slot]
        assert answer is not None
        if answer["kind"] == "values":
            return answer["values"]
        raise faults.from_json(answer["error"])

    def next_view(self, done: int, *, is_at_end: bool = False) -> messages.View:
        """Stop at the end of a step, and wait for the next view."""
        number = self.view.number
        self._send(messages.Stop(view=number, done=done, is_at_end=is_at_end))
        return self._view_after(number)

    def leave(self, done: int, state: Mapping[str, Any]) -> messages.View | None:
        """Wait until all members have finished, and close.

        The state, a summary of the variables, must be that of all members. Returns None at the end
        of the job. If a member is lost before it has finished, and another one has to compute
        again, a view with this worker is returned: the other one may need its state.
        """
        number = self.view.number
        self._send(messages.Leave(view=number, done=done, state=dict(state)))
        with self._changed:
            self._wait_for(lambda: self._may_go or self.view.number > number)
            if not self._may_go:
                return self.view
        self.close()
        return None

    def pause(self, seconds: float) -> None:
        """Wait, as long as this process has not given up."""
        self._closed.wait(seconds)

    def close(self) -> None:
        """End the connection and its threads; the others lose this worker if it has not left."""
        self._fail(faults.closed(self._job.index))
        self._end_presence()
        if self._channel is not None:
            self._channel.interrupt()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _end_presence(self) -> None:
        self._has_joined.set()
        if self._presence is not None:
            self._presence.join()

    def _send(self, message: messages.Message) -> None:
        assert self._channel is not None, "the worker has not joined"
        try:
            self._channel.send(message)
        except OSError:
            # The thread that receives knows why, or will soon: callers wait for its error.
            return

    def _view_after(self, number: int) -> messages.View:
        with self._changed:
            self._wait_for(lambda: self._view is not None and self._view.number > number)
            return self.view

    def _wait_for(self, is_there: Callable[[], bool]) -> None:
        """Wait under the lock; raise the failure of the job, in a copy for each thread."""
        self._changed.wait_for(lambda: is_there() or self._failure is not None)
        if not is_there() and self._failure is not None:
            raise copy.copy(self._failure)

    def _fail(self, error: Exception) -> None:
        """Keep the first failure, and wake up all that wait."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._closed.set()
            self._changed.notify_all()

    def _beat(self) -> None:
        while not self._closed.wait(self._job.heartbeat_seconds / messages.BEATS):
            self._send(messages.Beat())

    def _receive(self) -> None:
        assert self._channel is not None
        address, seconds = self._job.coordinator, self._job.heartbeat_seconds
        error: Exception | None = None
        try:
            while self._failure is None:
                if not self._channel.poll(seconds):
                    raise TimeoutError(f"it was silent for {seconds:g} seconds")
                self._take(self._channel.receive())
        except TimeoutError as silence:
            error = faults.coordinator_gone(address, str(silence))
        except (OSError, EOFError):
            error = faults.coordinator_gone(address, "its connection closed")
        except (ValueError, LookupError, TypeError) as malformed:
            error = faults.coordinator_gone(address, f"its message cannot be read: {malformed!r}")
        finally:
            self._channel.close()
        if error is not None:
            self._fail(error)
        if self._view is not None and not self._may_go:
            # No member any more: what waits for the others in a step ends.
            self._on_view_over()

    def _take(self, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "view":
                with self._changed:
                    self._view = messages.View.from_json(message["view"])
                    self._changed.notify_all()
            case "values" | "exchange_failed":
                with self._changed:
                    slot = (message["view"], message["key"])
                    if slot in self._answers:
                        self._answers[slot] = message
                    self._changed.notify_all()
            case "view_over":
                try:
                    self._on_view_over()
                except Exception as error:
                    # Raised in the threads that wait: this one has nobody to tell.
                    self._fail(error)
            case "go":
                with self._changed:
                    self._may_go = True
                    self._fail(faults.closed(self._job.index))
            case "error":
                self._fail(faults.from_json(message["error"]))
            case "beat":
                pass
            case kind:
                raise ValueError(f"kind {kind!r}")
