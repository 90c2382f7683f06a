"""Activities of the devices in a recorded step: tasks, and the gaps between them with their cause.

::

    gpu:0   forward + backward |          waits for gpu:1           | copy | update |
    gpu:1         forward + backward, a larger part                 | update |......|
                                                      last result that the update needs

A gap before a task ends when the last result that the task needs has arrived. Until another device
has computed that result, the device waits for it; from then on, the result is on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WAIT, COPY, IDLE = "wait", "copy", "idle"
"""Kinds of gaps: another device computes a needed result; the result is copied, summed or joined;
the last result was its own, and the device adds up, or waits for the host."""

OTHER_WORKERS = "other workers"
"""Name in place of a device, for results of other workers and their exchange."""

COMPUTE = ("forward", "forward + backward", "backward", "weights", "step")
"""Kinds of spans in which a device computes a part of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Activity of a device.

    Attributes:
        kind: Kind of the span, or ``WAIT``, ``COPY`` or ``IDLE``.
        begin: Begin, in seconds since the begin of the step.
        end: End, in seconds.
        other: Device that is waited for, or that a result comes from; empty if there is none.
        stage: Number of the stage; None without stages.
        micro_batch: Number of the micro-batch; None if there is one.
    """

    kind: str
    begin: float
    end: float
    other: str = ""
    stage: int | None = None
    micro_batch: int | None = None

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end - self.begin


def activities(
    spans: Sequence[Mapping[str, Any]], step: Mapping[str, Any]
) -> dict[str, list[Activity]]:
    """Return the activities of each device in a step, in order.

    Args:
        spans: Descriptions of the spans, as in ``steps.jsonl``.
        step: Begins and ends of the spans, in microseconds.

    >>> spans = [{"device": "gpu:0", "kind": "forward"}, {"device": "gpu:1", "kind": "forward"},
    ...          {"device": "gpu:0", "kind": "update", "after": [0, 1]}]
    >>> found = activities(spans, {"begin": [0, 0, 900], "end": [200, 800, 1000]})
    >>> [(each.kind, each.other, round(each.seconds * 1e6)) for each in found["gpu:0"]]
    [('forward', '', 200), ('wait', 'gpu:1', 600), ('copy', 'gpu:1', 100), ('update', '', 100)]
    """
    begins, ends = _times(spans, step)
    last = max(range(len(ends)), key=ends.__getitem__)
    of_device: dict[str, list[int]] = {}
    for number in sorted(range(len(spans)), key=lambda number: (begins[number], ends[number])):
        of_device.setdefault(spans[number]["device"], []).append(number)
    found: dict[str, list[Activity]] = {}
    for device, numbers in of_device.items():
        row = found[device] = []
        now = 0.0
        for number in numbers:
            span = spans[number]
            if begins[number] > now:
                row += _gap(now, begins[number], span, spans, ends)
            row.append(
                Activity(
                    kind=span["kind"],
                    begin=begins[number],
                    end=ends[number],
                    stage=span.get("stage"),
                    micro_batch=span.get("micro_batch"),
                )
            )
            now = max(now, ends[number])
        if ends[last] > now:
            other = spans[last]["device"]
            row.append(Activity(kind=WAIT, begin=now, end=ends[last], other=other))
    return found


def _times(
    spans: Sequence[Mapping[str, Any]], step: Mapping[str, Any]
) -> tuple[list[float], list[float]]:
    """Return the begins and ends in seconds.

    Nothing waits for the reading of an end, so a busy host may read it late. A result is there when
    a task begins that needs it.
    """
    begins, ends = [b / 1e6 for b in step["begin"]], [e / 1e6 for e in step["end"]]
    for number, span in enumerate(spans):
        for before in span.get("after", ()):
            ends[before] = min(ends[before], max(begins[number], begins[before]))
    return begins, ends


def _gap(
    begin: float,
    end: float,
    span: Mapping[str, Any],
    spans: Sequence[Mapping[str, Any]],
    ends: Sequence[float],
) -> list[Activity]:
    """Return the gap before a task: the device waits, then a result is on its way."""
    if span.get("joins"):
        # Their clocks are not ours: waiting and exchange are one.
        return [Activity(kind=WAIT, begin=begin, end=end, other=OTHER_WORKERS)]
    latest = max(span.get("after", ()), key=ends.__getitem__, default=None)
    if latest is None or spans[latest]["device"] == span["device"]:
        return [Activity(kind=IDLE, begin=begin, end=end)]
    other, computed = spans[latest]["device"], min(ends[latest], end)
    if computed <= begin:
        return [Activity(kind=COPY, begin=begin, end=end, other=other)]
    wait = Activity(kind=WAIT, begin=begin, end=computed, other=other)
    if computed == end:
        return [wait]
    return [wait, Activity(kind=COPY, begin=computed, end=end, other=other)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Seconds of a device in a step.

    Attributes:
        compute: Forward and backward passes.
        update: Updates of variables.
        once: Other tasks that are computed once for the batch.
        copy: Results on their way, and their sums.
        wait: Waiting, by the device that is waited for.
        idle: Gaps after results of its own.
        length: The whole step.
    """

    compute: float
    update: float
    once: float
    copy: float
    wait: Mapping[str, float]
    idle: float
    length: float


def time_of(row: Sequence[Activity], length: float) -> DeviceTime:
    """Return the seconds of a device by kind; overlapping tasks count once, for the first.

    Args:
        row: Its activities, by their begin.
        length: Length of the step, in seconds.
    """
    seconds: dict[str, float] = {}
    wait: dict[str, float] = {}
    now = 0.0
    for each in row:
        counted = max(0.0, each.end - max(each.begin, now))
        now = max(now, each.end)
        kind = "compute" if each.kind in COMPUTE else each.kind
        if kind == WAIT:
            wait[each.other] = wait.get(each.other, 0.0) + counted
        else:
            seconds[kind] = seconds.get(kind, 0.0) + counted
    return DeviceTime(
        compute=seconds.get("compute", 0.0),
        update=seconds.get("update", 0.0),
        once=seconds.get("once", 0.0),
        copy=seconds.get(COPY, 0.0),
        wait=wait,
        idle=seconds.get(IDLE, 0.0),
        length=length,
    )
