"""Timeline of a schedule, from the seconds of its tasks.

::

    order of a device     ... F3 | B1 | ...      B1 begins when F3 has ended on this device,
                                                 and F1 here and B1 of the next stage have.

It is deterministic: the same schedule and seconds give the same timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from evener.schedule.replica_schedule import Schedule
from evener.schedule.task import Task, TaskKind, dependencies

Seconds = Callable[[Task], float] | Mapping[TaskKind, float]
"""Seconds of a task, 0 or more: a function of the task, or a mapping from its kind."""

Transfer = Callable[[Task, Task], float]
"""Transfer seconds from the end of a task to the start of a dependent one."""

_Span = tuple[float, float]


class TimedTask(NamedTuple):
    """Task with its start and end, in seconds since the start of the first task."""

    task: Task
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Times of the tasks of a schedule.

    Args:
        events: Tasks of each device with their times, in order.
        makespan: Seconds from the start of the first task to the end of the last.
        bubble: Fraction of all devices' time in the makespan in which they are idle.
        peak_live: Most live micro-batches of each stage: from the start of their forward to the end
            of their last task there.
        peak_in_flight: Most micro-batches in flight: from the start of their forward to the end of
            their backward in stage 0; without backwards, to the end of their last forward.
    """

    events: tuple[tuple[TimedTask, ...], ...]
    makespan: float
    bubble: float
    peak_live: tuple[int, ...]
    peak_in_flight: int


def timeline(
    schedule: Schedule, seconds: Seconds, *, transfer: Transfer = lambda task, needed: 0.0
) -> Timeline:
    """Return the timeline in which every device runs its tasks as soon as it can.

    Args:
        schedule: Order of each device.
        seconds: Seconds of each task, 0 or more: a function of the task, or a mapping from its
            kind.
        transfer: Transfer seconds, 0 or more, as a function of a task and the dependency whose
            result it receives.

    >>> from evener.plan import Replica, Stage
    >>> from evener.schedule import schedule_for
    >>> stages = (Stage(device="gpu:0", layers=("a",)), Stage(device="gpu:1", layers=("b",)))
    >>> replica = Replica(share=1, stages=stages, num_micro_batches=4, in_flight=2)
    >>> times = timeline(schedule_for(replica), {"forward": 1.0, "backward": 2.0})
    >>> times.makespan, times.bubble, times.peak_live, times.peak_in_flight
    (15.0, 0.2, (2, 1), 2)
    """
    num_stages = schedule.num_stages
    events = _run(schedule, _by_task(seconds), num_stages, transfer)
    begins = {event.task: event.begin_seconds for device in events for event in device}
    ends = {event.task: event.end_seconds for device in events for event in device}
    makespan = max(ends.values())
    capacity = makespan * len(events)
    idle = capacity - sum(ends[task] - begins[task] for task in ends)
    live, in_flight = _spans(begins, ends, num_stages)
    return Timeline(
        events=events,
        makespan=makespan,
        bubble=max(0.0, idle) / capacity if capacity else 0.0,
        peak_live=tuple(map(_most_at_once, live)),
        peak_in_flight=_most_at_once(in_flight),
    )


def _by_task(seconds: Seconds) -> Callable[[Task], float]:
    if callable(seconds):
        return seconds
    by_kind = seconds
    return lambda task: by_kind[task.kind]


def _spans(
    begins: Mapping[Task, float], ends: Mapping[Task, float], num_stages: int
) -> tuple[list[list[_Span]], list[_Span]]:
    """Return the spans in which micro-batches are alive, per stage and in the replica."""
    live: list[list[_Span]] = [[] for _ in range(num_stages)]
    in_flight: list[_Span] = []
    for task, begin in begins.items():
        kind, stage, micro_batch = task
        if kind != "forward":
            continue
        backward = Task("backward", stage, micro_batch)
        weights = Task("weights", stage, micro_batch)
        live[stage].append((begin, ends.get(weights, ends.get(backward, ends[task]))))
        if stage == 0:
            last_forward = Task("forward", num_stages - 1, micro_batch)
            in_flight.append((begin, ends.get(backward, ends[last_forward])))
    return live, in_flight


def _run(
    schedule: Schedule,
    seconds: Callable[[Task], float],
    num_stages: int,
    transfer: Transfer,
) -> tuple[tuple[TimedTask, ...], ...]:
    """Run every device until it must wait, and resume it when the missing task has ended."""
    ends: dict[Task, float] = {}
    events: list[list[TimedTask]] = [[] for _ in schedule.orders]
    waiting: dict[Task, list[int]] = {}
    runnable = list(range(len(schedule.orders)))
    while runnable:
        device = runnable.pop()
        order, done = schedule.orders[device], events[device]
        now = done[-1].end_seconds if done else 0.0
        for task in order[len(done) :]:
            needed = dependencies(task, num_stages=num_stages)
            missing = next((other for other in needed if other not in ends), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(device)
                break
            begin = max([now, *(ends[other] + transfer(task, other) for other in needed)])
            now = begin + seconds(task)
            ends[task] = now
            done.append(TimedTask(task, begin, now))
            runnable += waiting.pop(task, ())
    assert not waiting, f"these tasks never end, and others wait for them: {list(waiting)}"
    return tuple(map(tuple, events))


def _most_at_once(spans: Iterable[_Span]) -> int:
    """Return the largest number of overlapping half-open spans."""
    # At equal times, ends come before starts.
    changes = sorted(change for begin, end in spans for change in ((begin, 1), (end, -1)))
    most = current = 0
    for _, change in changes:
        current += change
        most = max(most, current)
    return most
