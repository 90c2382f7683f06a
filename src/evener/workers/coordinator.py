"""Coordinator of a job: the threads and sockets around its `Membership`."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from evener.errors import RunError
from evener.workers.connections import Authenticator, Channel, start_thread
from evener.workers.job import join_address, split_address
from evener.workers.membership import Membership
from evener.workers.messages import Appear, Event, Hello, Look, Message

_LOGGER = logging.getLogger(__name__)
_GREETING_SECONDS = 10.0
"""Time in which a connection has to say hello, or a member that was given up has to close."""
_FAREWELL_SECONDS = 1.0
"""Time that `Coordinator.stop` leaves members to close their connections."""


class Coordinator:
    def __init__(
        self,
        count: int,
        secret: bytes,
        *,
        address: str = "127.0.0.1:0",
        heartbeat_seconds: float,
        start_seconds: float,
        patience_seconds: float = 600.0,
    ) -> None:
        self.address = address  # With the port at which it listens, once it is started.
        self._secret = secret
        self._heartbeat_seconds = heartbeat_seconds
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._membership = Membership(
            count,
            heartbeat_seconds=heartbeat_seconds,
            start_seconds=start_seconds,
            patience_seconds=patience_seconds,
            emit=self._events.put,
        )
        self._changed = threading.Condition()
        self._stopping = False
        # Also those that have ended, whose threads may run for a moment.
        self._lines: set[_Connection] = set()
        self._server: Authenticator | None = None
        self._threads: list[threading.Thread] = []

    def start(self, on_event: Callable[[Event], object] = lambda event: None) -> None:
        """Listen for members; RUN-060 if the address cannot be used."""
        self._on_event = on_event
        host, port = split_address(self.address, "the coordinator")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            server = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise RunError(
                "RUN-060",
                f"The coordinator cannot listen at {self.address}.",
                why=f"{error.strerror or error}.",
                fix="end the process that uses the port, or name another address: "
                "EVENER_COORDINATOR under TF_CONFIG.",
            ) from error
        self.address = join_address(host, server.getsockname()[1])
        self._server = Authenticator(server, self._secret, self._admit)
        self._threads = [
            start_thread("evener-coordinator_watch", self._watch),
            start_thread("evener-coordinator_report", self._report),
        ]

    def stop(self) -> None:
        """Send all pending messages, end all connections, and join all threads."""
        if self._server is None:
            return
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            lines = [*self._lines]
            self._changed.notify_all()
            for line in lines:
                line.end()
        self._server.close()
        deadline = time.monotonic() + _FAREWELL_SECONDS
        for line in lines:
            line.join(deadline)
        self._events.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def absent(self) -> list[int]:
        with self._changed:
            return sorted(self._membership.absent())

    def wait_for_newcomers(self) -> None:
        """Let replacements learn that the job is over, as long as one may be silent."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._membership.has_newcomers, self._heartbeat_seconds
            )

    def go_without(self, index: int) -> None:
        with self._changed:
            self._membership.go_without(index, time.monotonic())
            self._changed.notify_all()

    def expect(self, index: int, incarnation: int) -> None:
        with self._changed:
            self._membership.expect(index, incarnation, time.monotonic())
            self._changed.notify_all()

    def _admit(self, connected: socket.socket) -> None:
        with self._changed:
            if self._stopping:
                connected.close()
                return
            line = _Connection(
                Channel(connected, send_seconds=self._heartbeat_seconds), self._serve
            )
            self._lines = {line, *(each for each in self._lines if each.is_running)}
            self._changed.notify_all()

    def _serve(self, line: _Connection) -> None:
        why = "its messages cannot be acted on"
        try:
            why = self._read_all(line)
        finally:
            with self._changed:
                if not self._stopping:
                    self._membership.disconnected(line, time.monotonic(), why)
                line.end()
                line.limit = None  # What is left to send may take longer.
                self._changed.notify_all()

    def _read_all(self, line: _Connection) -> str:
        """Act on the messages of a connection, and return why no more come."""
        try:
            while True:
                message = msgspec.convert(line.channel.receive(), Message)
                with self._changed:
                    if isinstance(message, Look):
                        line.send(self._membership.past())
                        return "it has looked"
                    if not line.is_known and not isinstance(message, Hello | Appear):
                        return "its first message is no hello"
                    line.is_known = True
                    # A worker that was refused gets no second chance on the same connection.
                    if not line.is_ending:
                        line.limit = None
                        self._membership.receive(line, message, time.monotonic())
                        self._changed.notify_all()
        except (OSError, EOFError):
            return "its connection closed"
        except ValueError as error:
            return f"it sent a message that cannot be read ({error})"

    def _watch(self) -> None:
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                self._membership.tick(now)
                for line in self._lines:
                    if line.limit is not None and now >= line.limit:
                        line.channel.interrupt()
                        line.limit = None
                limits = [line.limit for line in self._lines]
                deadlines = (*limits, self._membership.next_deadline())
                due = min((each for each in deadlines if each is not None), default=None)
                self._changed.wait(None if due is None else max(due - time.monotonic(), 0.0))
                if due is not None and time.monotonic() > due + self._heartbeat_seconds / 2:
                    # This process was stopped: the messages of its members are not read yet.
                    self._membership.excuse_silence(time.monotonic())

    def _report(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._on_event(event)
            except Exception:
                _LOGGER.exception("The function that takes events failed for %s", event)


class _Connection:
    """Connection of a process, with the thread that reads and the one that sends."""

    def __init__(self, channel: Channel, serve: Callable[[_Connection], None]) -> None:
        self.channel = channel
        self.is_known = False  # True once it has said hello, or appeared.
        # Time at which the connection is interrupted.
        self.limit: float | None = time.monotonic() + _GREETING_SECONDS
        self.is_ending = False  # True once nothing more is sent.
        self._outbox: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._serve = serve
        self._writer = start_thread("evener-coordinator-send", self._write)
        self._reader = start_thread("evener-coordinator-read", self._read)

    @property
    def is_running(self) -> bool:
        return self._reader.is_alive() or self._writer.is_alive()

    def send(self, message: Mapping[str, Any]) -> None:
        if not self.is_ending:
            self._outbox.put(message)

    def end(self) -> None:
        if not self.is_ending:
            self.is_ending = True
            self.limit = time.monotonic() + _GREETING_SECONDS
            self._outbox.put(None)

    def join(self, deadline: float) -> None:
        """Wait for both threads; the connection is interrupted at the deadline."""
        self._reader.join(max(deadline - time.monotonic(), 0.0))
        self.channel.interrupt()
        for thread in (self._reader, self._writer):
            if thread is not threading.current_thread():
                thread.join()

    def _read(self) -> None:
        self._serve(self)
        self._writer.join()
        self.channel.close()

    def _write(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self.channel.send(message)
            self.channel.finish_sending()
        except OSError:
            # The reader gets an error too, and reports the end of the connection.
            self.channel.interrupt()
