"""One step of a plan over time: a row for each device, scaled to the width of the terminal.

::

     > forward, < backward, = transfers, u update, . idle, 0 1 2: the micro-batch
     gpu:0   ==0>>1>>2>>3>>.....0<<<<1<<<<2<<<<3<<<<==u
     gpu:1   ==...0>>0<<<<1>>1<<<<2>>2<<<<3>>3<<<<....u

    ==         transfer of weights or gradients that no computation hides
    0>> 0<<<   the forward and the backward pass of micro-batch 0
    .          idle
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import Assignment
from evener.cost_model.prediction import Prediction
from evener.profile import Cluster
from evener.report.plan_groups import (
    MOST_ROWS,
    ReplicaGroup,
    replica_groups,
    shortened,
    widest_label,
)
from evener.schedule.task import Task
from evener.schedule.timing import TimedTask
from evener.units import format_seconds

_MARKS = {"forward": ">", "backward": "<", "weights": "~"}
_MEANINGS = {
    ">": "> forward",
    "<": "< backward",
    "~": "~ gradients of weights",
    "=": "= transfers",
    "u": "u update",
    ".": ". idle",
}
_LEAST_COLUMNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Activity of a device during part of a step.

    Args:
        begin_seconds: Start, in seconds since the start of the step.
        end_seconds: End, in seconds since the start of the step.
        mark: Character that is drawn.
        label: Number of the micro-batch, drawn first if there is room for all of them.
    """

    begin_seconds: float
    end_seconds: float
    mark: str
    label: str = ""


def draw_timeline(
    assignment: Assignment, prediction: Prediction, cluster: Cluster, *, width: int
) -> list[str]:
    """Return the lines of the picture: the legend, a row for each device, the scale.

    Args:
        assignment: Layers and samples of each device.
        prediction: Prediction for the assignment.
        cluster: Devices of the assignment.
        width: Number of columns, at least 40.
    """
    rows: list[tuple[str, list[Activity]]] = []
    for group in replica_groups(assignment, cluster):
        for label, tasks in _devices(group, prediction):
            if len(rows) < MOST_ROWS:
                rows.append((label, list(_activities(tasks, group, prediction))))
    return _drawn(rows, prediction.step_seconds, width)


def paint(
    activities: Sequence[Activity], seconds: float, columns: int, *, labels: bool = True
) -> str:
    """Return the row of a device: ``columns`` characters for a step of ``seconds``.

    >>> forward = Activity(begin_seconds=0.0, end_seconds=2.0, mark=">", label="0")
    >>> backward = Activity(begin_seconds=2.0, end_seconds=6.0, mark="<", label="0")
    >>> paint([forward, backward], 8.0, 16)
    '0>>>0<<<<<<<....'
    """
    row = ["."] * columns
    for activity in activities:
        begin, end = _columns(activity, seconds, columns)
        text = activity.label if labels else ""
        row[begin:end] = text + activity.mark * (end - begin - len(text))
    return "".join(row)


def _columns(activity: Activity, seconds: float, columns: int) -> tuple[int, int]:
    """Return the first column of an activity, and the column after its last."""
    begin, end = (
        min(columns, round(when / seconds * columns)) if seconds else 0
        for when in (activity.begin_seconds, activity.end_seconds)
    )
    return begin, end


def _devices(
    group: ReplicaGroup, prediction: Prediction
) -> Iterator[tuple[str, Sequence[TimedTask]]]:
    """Yield the label and the tasks of each device of a group, in the order of the stages."""
    number = group.numbers[0]
    times = prediction.timelines[number]
    if times is None:
        passes = prediction.replicas[number].passes[0]
        yield group.labels[0], _one_stage(passes, group.replica.num_micro_batches)
        return
    first_stages: dict[int, int] = {}
    for stage, span in enumerate(group.replica.spans):
        first_stages.setdefault(span.device, stage)
    for stage, tasks in zip(first_stages.values(), times.events, strict=True):
        yield group.labels[stage], tasks


def _one_stage(passes: tuple[float, float], num_micro_batches: int) -> list[TimedTask]:
    """Return the tasks of a replica of one stage: each micro-batch forward and backward."""
    forward, backward = passes
    found: list[TimedTask] = []
    now = 0.0
    for number in range(num_micro_batches):
        found.append(TimedTask(Task("forward", 0, number), now, now + forward))
        now += forward + backward
        found.append(TimedTask(Task("backward", 0, number), now - backward, now))
    return found


def _activities(
    tasks: Sequence[TimedTask], group: ReplicaGroup, prediction: Prediction
) -> Iterator[Activity]:
    """Yield the activities of a device: weights arrive, passes, gradients are sent, update."""
    replica = prediction.replicas[group.numbers[0]]
    waits = replica.arrival_seconds
    yield Activity(begin_seconds=0.0, end_seconds=waits, mark="=")
    for task, begin, end in tasks:
        yield Activity(
            begin_seconds=waits + begin,
            end_seconds=waits + end,
            mark=_MARKS[task.kind],
            label=str(task.micro_batch) if group.replica.num_micro_batches > 1 else "",
        )
    updates = replica.seconds - replica.update_seconds
    computed = updates - (replica.communication_seconds - waits)
    yield Activity(begin_seconds=computed, end_seconds=updates, mark="=")
    yield Activity(begin_seconds=updates, end_seconds=replica.seconds, mark="u")


def _drawn(rows: Sequence[tuple[str, Sequence[Activity]]], seconds: float, width: int) -> list[str]:
    label_width = min(widest_label(width), max(len(label) for label, _ in rows))
    columns = max(_LEAST_COLUMNS, width - label_width - 4)
    numbered = [activity for _, activities in rows for activity in activities if activity.label]
    spans = [(_columns(activity, seconds, columns), len(activity.label)) for activity in numbered]
    labels = all(end - begin > length for (begin, end), length in spans)
    painted = [paint(activities, seconds, columns, labels=labels) for _, activities in rows]
    meanings = [text for mark, text in _MEANINGS.items() if any(mark in row for row in painted)]
    if numbered and labels:
        meanings.append("0 1 2: the micro-batch")
    return [
        *(f" {line}" for line in textwrap.wrap(", ".join(meanings), width - 1)),
        *(
            f" {shortened(label, label_width):{label_width}}  {row}"
            for (label, _), row in zip(rows, painted, strict=True)
        ),
        f"{' ' * (label_width + 3)}0{format_seconds(seconds):>{columns - 1}}",
    ]
