"""Activities of a step, which wait for each other and for the servers that they use.

Devices and connections are servers that do one thing after another. A transfer passes through
several of them, each as soon as it is free, without waiting for the end of the one before::

    out of gpu:0   [ a ][ b ]
    into gpu:1     [ a ]
    into gpu:2     . . .[ other ][ b ]        b waits for the other one, and a does not

Every server takes first what comes first, and of what comes at once what was added first; so the
same step always gives the same times. Real connections may divide their bandwidth instead: the sum
of the bytes takes as long, and single transfers end earlier or later.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

ActivityKind = Literal["fetch", "forward", "backward", "send", "gradient", "update", "barrier"]

ServerKind = Literal[
    "compute", "out", "in", "bus", "host out", "host in", "network out", "network in"
]

COMPUTING: frozenset[ActivityKind] = frozenset({"forward", "backward", "update"})
"""Kinds of computation on a device; all other activities are transfers or barriers."""


class Server(NamedTuple):
    """A device that computes, or one direction of a connection."""

    kind: ServerKind
    place: int


class Use(NamedTuple):
    """Use of a server by an activity, with its seconds."""

    server: Server
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """A computation of a device, a transfer, or a barrier, which only waits."""

    kind: ActivityKind
    what: str
    needs: tuple[int, ...]
    uses: tuple[Use, ...]
    device: int
    latency_seconds: float = 0.0
    source: int | None = None
    num_bytes: float = 0.0


class Hold(NamedTuple):
    """Bytes in the memory of a device, from the begin of an activity to the end of another."""

    device: int
    num_bytes: float
    begin: int
    end: int


class Span(NamedTuple):
    begin: float
    end: float


@dataclass(slots=True)
class StepGraph:
    """Graph of the activities of a step, in topological order, with their memory."""

    activities: list[Activity] = field(default_factory=list[Activity])
    holds: list[Hold] = field(default_factory=list[Hold])

    def add(self, activity: Activity) -> int:
        self.activities.append(activity)
        return len(self.activities) - 1

    def hold(self, device: int, num_bytes: float, *, begin: int, end: int) -> None:
        """Add bytes that are in memory from the start of an activity to the end of another."""
        if num_bytes > 0:
            self.holds.append(Hold(device, num_bytes, begin, end))


class _Arrival(NamedTuple):
    """Arrival of an activity at its next server; events are sorted by these fields."""

    seconds: float
    number: int
    num_passed: int
    begin: float
    end: float


def run(activities: Sequence[Activity]) -> list[Span]:
    """Return when each activity runs."""
    missing = [len(set(activity.needs)) for activity in activities]
    waiting: list[list[int]] = [[] for _ in activities]
    for number, activity in enumerate(activities):
        for needed in set(activity.needs):
            waiting[needed].append(number)
    times = [Span(0.0, 0.0)] * len(activities)
    free_at: dict[Server, float] = {}
    events = [_Arrival(0.0, number, 0, 0.0, 0.0) for number, few in enumerate(missing) if not few]
    while events:
        now, number, num_passed, begin, end = heapq.heappop(events)
        activity = activities[number]
        if num_passed < len(activity.uses):
            server, seconds = activity.uses[num_passed]
            # What takes no time does not wait for its turn either.
            taken = max(now, free_at.get(server, 0.0)) if seconds > 0 else now
            if seconds > 0:
                free_at[server] = taken + seconds
            first = taken if num_passed == 0 else begin
            last = max(end, taken + seconds)
            heapq.heappush(events, _Arrival(taken, number, num_passed + 1, first, last))
            continue
        times[number] = Span(begin, max(end, now) + activity.latency_seconds)
        for other in waiting[number]:
            missing[other] -= 1
            if not missing[other]:
                ready = max(times[needed].end for needed in activities[other].needs)
                heapq.heappush(events, _Arrival(ready, other, 0, ready, ready))
    return times
