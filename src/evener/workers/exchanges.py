"""Exchanges: every member of a view gives a value under a key, and gets those of all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from evener.errors import RunError
from evener.workers import faults
from evener.workers.messages import Exchange


class Line(Protocol):
    """Way to a member. Neither method waits."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message after those before."""
        ...

    def end(self) -> None:
        """Close the connection when all messages are sent."""
        ...


@dataclass(slots=True, kw_only=True)
class _Open:
    deadline: float
    seconds: float
    lines: dict[int, Line] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)


class Exchanges:
    """Exchanges of a view that wait for members.

    ``finished`` has the values of all exchanges of the job so far, by key; new ones are added to
    it.
    """

    def __init__(self, view: int, members: Collection[int], finished: dict[str, list[Any]]) -> None:
        self._finished = finished
        self._view = view
        self._members = sorted(members)
        self._open: dict[str, _Open] = {}
        self._failed: dict[str, RunError] = {}

    @property
    def deadline(self) -> float | None:
        """Time at which the first exchange fails, or None."""
        return min((waiting.deadline for waiting in self._open.values()), default=None)

    def give(self, index: int, line: Line, given: Exchange, now: float) -> None:
        """Take the value of a member; with the last one, send all values to all members.

        A key that has failed fails again at once: the members must not disagree about it.
        """
        key = given.key
        if key in self._failed:
            self._fail({index: line}, key, self._failed[key])
            return
        deadline = now + given.timeout_seconds
        waiting = self._open.setdefault(
            key, _Open(deadline=deadline, seconds=given.timeout_seconds)
        )
        if index in waiting.values:
            self._fail({index: line}, key, faults.given_twice(index, key))
            return
        waiting.lines[index], waiting.values[index] = line, given.value
        if deadline < waiting.deadline:
            waiting.deadline, waiting.seconds = deadline, given.timeout_seconds
        if len(waiting.values) == len(self._members):
            del self._open[key]
            values = [waiting.values[member] for member in self._members]
            self._finished[key] = values
            self._send(waiting.lines, {"kind": "values", "key": key, "values": values})

    def tick(self, now: float) -> None:
        """Fail the exchanges whose time is over."""
        for key in [key for key, waiting in self._open.items() if now >= waiting.deadline]:
            waiting = self._open[key]
            absent = set(self._members) - waiting.values.keys()
            error = faults.not_given(absent, key, waiting.seconds, self._instead(absent, key))
            del self._open[key]
            self._failed[key] = error
            self._fail(waiting.lines, key, error)

    def end(self, why: str) -> None:
        """Fail all exchanges, because the view is over."""
        error = faults.view_over(self._view, why)
        for key, waiting in self._open.items():
            self._fail(waiting.lines, key, error)
        self._open.clear()

    def _instead(self, absent: Collection[int], key: str) -> str:
        found = [
            f" Worker {index} waits in the exchange {other!r}."
            for other, waiting in self._open.items()
            for index in sorted(waiting.values)
            if other != key and index in absent
        ]
        return "".join(found[:3])

    def _fail(self, lines: Mapping[int, Line], key: str, error: RunError) -> None:
        message = {"kind": "exchange_failed", "key": key, "error": faults.to_json(error)}
        self._send(lines, message)

    def _send(self, lines: Mapping[int, Line], message: Mapping[str, Any]) -> None:
        for line in lines.values():
            line.send({**message, "view": self._view})
