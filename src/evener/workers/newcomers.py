"""Replacements on their way: processes that were started, and have not said hello yet.

A replacement runs the program from its beginning before it says hello, which may take long. So it
tells that it is alive from the moment at which evener starts in it, on a connection of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evener.workers.exchanges import Line
from evener.workers.messages import Appear


@dataclass(slots=True, kw_only=True)
class _Newcomer:
    """A replacement on its way."""

    incarnation: int  # Number of its restarts.
    line: Line | None  # Its connection; None before it has appeared.
    heard_at: float  # Time of its last message; before it has appeared, of its start.
    patience_seconds: float  # Silence after which it is lost.

    @property
    def deadline(self) -> float:
        return self.heard_at + self.patience_seconds

    @property
    def silence(self) -> str:
        since = "" if self.line else " after its start"
        return f"it was silent for {self.patience_seconds:g} seconds{since}"


class Newcomers:
    """Replacements on their way. It has no thread and no clock.

    One must appear ``start_seconds`` after its process starts; from then on, it is lost after
    ``heartbeat_seconds`` of silence. ``lose`` takes the number, the incarnation and the reason.
    """

    def __init__(
        self,
        *,
        heartbeat_seconds: float,
        start_seconds: float,
        lose: Callable[[int, int, str], None],
    ) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._start_seconds = start_seconds
        self._lose = lose
        self._by_index: dict[int, _Newcomer] = {}

    def expect(self, index: int, incarnation: int, now: float) -> None:
        """Note that the process of a replacement is started."""
        self._by_index[index] = _Newcomer(
            incarnation=incarnation,
            line=None,
            heard_at=now,
            patience_seconds=self._start_seconds,
        )

    def appear(self, line: Line, message: Appear, now: float) -> None:
        """Note that evener has started in a replacement; the line is a connection of its own."""
        self._by_index[message.index] = _Newcomer(
            incarnation=message.incarnation,
            line=line,
            heard_at=now,
            patience_seconds=self._heartbeat_seconds,
        )

    def hear(self, line: Line, now: float) -> None:
        """Note a message on the connection of a replacement, if it is that of one."""
        for newcomer in self._by_index.values():
            if newcomer.line is line:
                newcomer.heard_at = now

    def arrive(self, index: int) -> None:
        """Note that a worker has said hello."""
        self._by_index.pop(index, None)

    def disconnected(self, line: Line, why: str) -> None:
        """Act on the end of a connection, if it is that of a replacement."""
        for index, newcomer in tuple(self._by_index.items()):
            if newcomer.line is line:
                self._give_up(index, why)

    def tick(self, now: float) -> None:
        """Give up those that were silent for too long."""
        for index, newcomer in tuple(self._by_index.items()):
            if now >= newcomer.deadline:
                self._give_up(index, newcomer.silence)

    def excuse_silence(self, now: float) -> None:
        """Count all as heard now."""
        for newcomer in self._by_index.values():
            newcomer.heard_at = now

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` has something to do, or None."""
        return min((each.deadline for each in self._by_index.values()), default=None)

    def _give_up(self, index: int, why: str) -> None:
        newcomer = self._by_index.pop(index)
        if newcomer.line is not None:
            newcomer.line.end()
        self._lose(index, newcomer.incarnation, why)
