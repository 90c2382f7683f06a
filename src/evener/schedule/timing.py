"""When the tasks of a schedule run, from how long each of them takes.

::

    order of a device     ... F3 | B1 | ...      B1 begins when F3 has ended on this device,
                                                 and F1 here and B1 of the next stage have.

There is no clock and no randomness: the same schedule and seconds give the same timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from evener.schedule.replica_schedule import Schedule
from evener.schedule.task import Task, TaskKind, dependencies

Seconds = Callable[[Task], float] | Mapping[TaskKind, float]
"""How long a task takes, 0 or more: by task, or by its kind."""

Transfer = Callable[[Task, Task], float]
"""How long it takes until a task has what it needs of another, which has ended."""

_Span = tuple[float, float]


class TimedTask(NamedTuple):
    """A task and when it runs, in seconds since the begin of the first one."""

    task: Task
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When the tasks of a schedule run.

    Args:
        events: For each device of the schedule its tasks with their times, in order.
        makespan: The seconds from the begin of the first task to the end of the last.
        bubble: The fraction of all devices' time in the makespan in which they are idle.
        peak_live: For each stage the most micro-batches whose forward has begun there while
            the last of their tasks there has not ended.
        peak_in_flight: The most micro-batches whose forward has begun in stage 0 while their
            backward has not ended there; without backwards, while their last forward has not.
    """

    events: tuple[tuple[TimedTask, ...], ...]
    makespan: float
    bubble: float
    peak_live: tuple[int, ...]
    peak_in_flight: int


def timeline(
    schedule: Schedule, seconds: Seconds, *, transfer: Transfer = lambda task, needed: 0.0
) -> Timeline:
    """Return when the tasks run if every device runs its own as soon as it can.

    Args:
        schedule: The order of each device.
        seconds: How long each task takes, 0 or more: a function of the task, or a mapping
            from its kind.
        transfer: How long what a task needs of another takes to arrive, 0 or more, once that one
            has ended: a function of both.

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
    """Return when micro-batches are alive: for each stage, and in the whole replica."""
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
    """Let every device run until it must wait, and again when what it waits for has ended."""
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
    """Return how many half-open spans overlap at most."""
    # At one time, what ends goes before what begins.
    changes = sorted(change for begin, end in spans for change in ((begin, 1), (end, -1)))
    most = current = 0
    for _, change in changes:
        current += change
        most = max(most, current)
    return most
