"""A plan and its predicted cost as text: stages, one step over time, memory, remedies.

The stages are a picture with a row for each device, its layers, and the bytes between stages::

             ┌──────────────────────────────────┐
     gpu:0   │ embedding..block_5      7 layers │ 320 samples, 83.3%
             ├─▼ 16.8 MiB ──────────────────────┤     bytes to the next stage, per micro-batch
     gpu:1   │ block_6..head           5 layers │
             ├──────────────────────────────────┤     another replica: no activations sent
     gpu:2   │ embedding..head        12 layers │ 64 samples, 16.7%
             └──────────────────────────────────┘

The step over time has a row for each device, scaled to the width of the terminal::

     > forward, < backward, = transfers, u update, . idle, 0 1 2: the micro-batch
     gpu:0   ==0>>1>>2>>3>>.....0<<<<1<<<<2<<<<3<<<<==u
     gpu:1   ==...0>>0<<<<1>>1<<<<2>>2<<<<3>>3<<<<....u

    ==         transfer of weights or gradients that no computation hides
    0>> 0<<<   the forward and the backward pass of micro-batch 0
    .          idle
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.base.terminal import standard_output
from evener.base.text import format_bytes, format_seconds
from evener.plan.profile import Cluster, CostProfile, ModelCosts
from evener.plan.schedule import Task, TimedTask
from evener.planner.assignment import HOST_OWNER, Assignment, ReplicaAssignment, Span
from evener.planner.planning import Planned, specialties
from evener.planner.prediction import Prediction

MOST_ROWS = 12
"""Largest number of rows of a picture; a row is a device, or several that compute the same."""

_FEW = 2
_NEARLY_FULL = 0.9
_LEAST_BOX, _WIDEST_BOX = 10, 56
_MARKS = {"forward": ">", "backward": "<"}
_MEANINGS = {
    ">": "> forward",
    "<": "< backward",
    "=": "= transfers",
    "u": "u update",
    ".": ". idle",
}
_LEAST_COLUMNS = 20
_BAR_WIDTH = 24
_SHORT_BAR_WIDTH = 16
# As wide as the table of the plan.
_WIDEST = 100
_PARTS = {
    "variables": ("#", "variables"),
    "fetched": ("f", "weights of other devices"),
    "gradients": ("g", "gradients"),
    "activations": ("a", "activations"),
    "workspace": ("w", "workspace"),
}


def print_planned(planned: Planned, console: Console | None = None) -> None:
    console = standard_output() if console is None else console
    console.print(Text(str(planned.plan)), soft_wrap=True)
    console.print(Text("\nWhat each device computes"))
    for line in stage_lines(planned, console.width):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(f"\nA step of {planned.batch_size} samples"))
    for line in time_lines(planned):
        console.print(Text(f"  {line}"), soft_wrap=True)
    console.print(Text("\nThe step over time"))
    for line in step_lines(planned, console.width):
        console.print(Text(line), soft_wrap=True)
    legend = ", ".join(f"{letter} {name}" for letter, name in _PARTS.values())
    console.print(Text(f"\nMemory ({legend})"))
    console.print(memory_table(planned, console.width))
    for line in textwrap.wrap(_margin_note(planned), console.width):
        console.print(Text(line))
    if planned.problem:
        console.print(Text(f"\nDoes not fit: {planned.problem}."), soft_wrap=True)
    if planned.remedies:
        console.print(Text("\nWhat would help"))
        for remedy in planned.remedies:
            console.print(Text(f"  {remedy}"), soft_wrap=True)


def stage_lines(planned: Planned, width: int) -> list[str]:
    assignment, profile = planned.assignment, planned.profile
    width = min(width, _WIDEST)
    groups = replica_groups(assignment, profile.cluster)
    num_rows, num_drawn = 0, 0
    for group in groups:
        num_rows += len(group.devices)
        if num_drawn and num_rows > MOST_ROWS:
            break
        num_drawn += 1
    drawn = groups[:num_drawn]
    label_width = min(
        widest_label(width), max(len(text) for group in drawn for text in group.labels)
    )
    texts = [_layers(span, profile.model) for group in drawn for span in group.replica.spans]
    passed = [text for group in drawn for text in _passing(group, profile)]
    wanted = max([*(len(f"{names}  {count}") for names, count in texts), *map(len, passed)])
    # The table has the numbers of micro-batches too, so leave them out first.
    for with_micro_batches in (True, False):
        shares = [
            _share(group, assignment.batch_size, micro_batches=with_micro_batches)
            for group in drawn
        ]
        # What is left beside the label, the borders of the box and the share.
        room = width - label_width - 7 - max(map(len, shares))
        if room >= wanted:
            break
    label_width -= max(0, _LEAST_BOX - room)
    box = max(_LEAST_BOX, min(wanted, room, _WIDEST_BOX))
    blank = " " * (label_width + 2)
    lines = [f"{blank}┌{'─' * (box + 2)}┐"]
    for number, (group, share) in enumerate(zip(drawn, shares, strict=True)):
        if number:
            lines.append(f"{blank}├{'─' * (box + 2)}┤")
        arrows = _passing(group, profile)
        for stage, span in enumerate(group.replica.spans):
            label = shortened(group.labels[stage], label_width)
            names, count = _layers(span, profile.model)
            names = shortened(names, box - len(count) - 1)
            row = f" {label:{label_width}} │ {names}{count:>{box - len(names)}} │"
            lines.append(f"{row} {share}" if stage == 0 else row)
            for text in arrows[stage : stage + 1]:
                line = text[: box + 2] + text[0] * (box + 2 - len(text))
                lines.append(f"{blank}╞{line}╡" if text[0] == "═" else f"{blank}├{line}┤")
    lines.append(f"{blank}└{'─' * (box + 2)}┘")
    for note in _notes(groups[num_drawn:], assignment, profile.cluster):
        lines += [f" {line}" for line in textwrap.wrap(note, width - 1)]
    return lines


def step_lines(planned: Planned, width: int) -> list[str]:
    prediction, cluster = planned.prediction, planned.profile.cluster
    width, seconds = min(width, _WIDEST), prediction.step_seconds
    rows: list[tuple[str, list[DrawnSpan]]] = []
    for group in replica_groups(planned.assignment, cluster):
        for label, tasks in _devices(group, prediction):
            if len(rows) < MOST_ROWS:
                rows.append((label, list(_spans(tasks, group, prediction))))
    label_width = min(widest_label(width), max(len(label) for label, _ in rows))
    columns = max(_LEAST_COLUMNS, width - label_width - 4)
    numbered = [activity for _, each in rows for activity in each if activity.label]
    spans = [(_columns(activity, seconds, columns), len(activity.label)) for activity in numbered]
    labels = all(end - begin > length for (begin, end), length in spans)
    painted = [paint(each, seconds, columns, labels=labels) for _, each in rows]
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


def time_lines(planned: Planned) -> Iterator[str]:
    prediction = planned.prediction
    rate = planned.batch_size / prediction.step_seconds if prediction.step_seconds else 0.0
    yield f"{format_seconds(prediction.step_seconds)}, {rate:,.0f} samples/s"
    special = ", ".join(specialties(planned.assignment))
    if special:
        yield special
    shown = prediction.replicas[:8]
    for number, replica in enumerate(shown):
        parts = {
            "computing": replica.compute_seconds,
            "bubble": replica.bubble_seconds,
            "communication": replica.communication_seconds,
            "update": replica.update_seconds,
        }
        text = ", ".join(f"{name} {format_seconds(part)}" for name, part in parts.items() if part)
        yield f"replica {number}: {text}"
    if len(prediction.replicas) > len(shown):
        yield f"and {len(prediction.replicas) - len(shown)} more replicas"
    overhead = planned.profile.step_overhead_seconds
    if overhead:
        yield f"plus {format_seconds(overhead)} in each step for Python and metrics"


def memory_table(planned: Planned, width: int = _WIDEST) -> Table:
    bar_width = _BAR_WIDTH if width >= _WIDEST else _SHORT_BAR_WIDTH
    table = Table(box=None, show_edge=False, pad_edge=True)
    for heading in ("device", "", "peak", "of", "mostly"):
        justify = "right" if heading in ("peak", "of") else "left"
        table.add_column(heading, justify=justify, no_wrap=heading != "mostly")
    cluster = planned.profile.cluster
    for device, needed in sorted(planned.prediction.memory.items())[:16]:
        parts = {name: getattr(needed, name) for name in _PARTS}
        memory = cluster.machines[0].host_memory_bytes
        name = "host"
        if device != HOST_OWNER:
            memory, name = cluster.devices[device].memory_bytes, cluster.devices[device].name
        whole = max(memory or 0, needed.total, 1)
        bar = "".join(
            letter * round(bar_width * parts[part] / whole) for part, (letter, _) in _PARTS.items()
        )
        largest = max(parts, key=lambda part: parts[part])
        table.add_row(
            Text(name),
            Text(f"[{bar[:bar_width]:{bar_width}}]"),
            Text(format_bytes(needed.total)),
            Text("-" if memory is None else format_bytes(memory)),
            Text(f"{_PARTS[largest][1]} {format_bytes(parts[largest])}"),
        )
    return table


def _margin_note(planned: Planned) -> str:
    """Return that a plan leaves no room for TensorFlow's allocator; empty if it leaves a tenth."""
    devices = planned.profile.cluster.devices
    full = [
        f"{devices[index].name} to {needed.total / memory:.1%}"
        for index, needed in sorted(planned.prediction.memory.items())
        if index != HOST_OWNER and (memory := devices[index].memory_bytes)
        if _NEARLY_FULL < needed.total / memory <= 1
    ]
    if not full:
        return ""
    return (
        f"No margin: tensors alone fill {', '.join(full[:_FEW])}"
        f"{' and others' * (len(full) > _FEW)}. TensorFlow's allocator needs more beside them, 0 "
        "to 8 % where measured with memory_growth=False: set that, or plan a smaller batch."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Replicas that compute the same on devices of the same types."""

    numbers: tuple[int, ...]  # Indices of the replicas among those with samples, ascending
    replica: ReplicaAssignment  # First of these replicas
    devices: tuple[tuple[str, ...], ...]  # Names of the devices of each stage, one for each replica

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(devices_label, self.devices))


def replica_groups(assignment: Assignment, cluster: Cluster) -> list[ReplicaGroup]:
    numbers: dict[object, list[int]] = {}
    for number, replica in enumerate(assignment.replicas):
        numbers.setdefault(_look(replica, cluster), []).append(number)
    groups: list[ReplicaGroup] = []
    for alike in numbers.values():
        replicas = [assignment.replicas[number] for number in alike]
        names = [[cluster.devices[s.device].name for s in replica.spans] for replica in replicas]
        devices = tuple(zip(*names, strict=True))
        groups.append(ReplicaGroup(numbers=tuple(alike), replica=replicas[0], devices=devices))
    return groups


def devices_label(names: Sequence[str]) -> str:
    """Return a text for devices.

    >>> devices_label(["gpu:0", "gpu:1"]), devices_label([f"gpu:{k}" for k in range(8)])
    ('gpu:0, gpu:1', 'gpu:0..gpu:7 x8')
    """
    if len(names) <= _FEW:
        return ", ".join(names)
    worker = names[0].rpartition("/")[0]
    # All are on one machine, which the first name says.
    last = names[-1].removeprefix(f"{worker}/") if worker else names[-1]
    return f"{names[0]}..{last} x{len(names)}"


def widest_label(width: int) -> int:
    return max(16, width * 2 // 5)


def shortened(text: str, width: int) -> str:
    """Return a text with its middle left out if it is longer than a width, at least 1.

    >>> shortened("encoder/block_11/attention", 12)
    'encode…ntion'
    """
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _look(replica: ReplicaAssignment, cluster: Cluster) -> object:
    devices = [cluster.devices[span.device] for span in replica.spans]
    order = {span.device: None for span in replica.spans}
    return (
        (replica.samples, replica.num_micro_batches, replica.in_flight, replica.schedule),
        tuple((span.first, span.end, list(order).index(span.device)) for span in replica.spans),
        tuple(device.type for device in devices),
        # Whether each stage is in the machine of the one before it.
        tuple(device.machine == devices[0].machine for device in devices),
    )


def _notes(others: list[ReplicaGroup], assignment: Assignment, cluster: Cluster) -> Iterator[str]:
    if others:
        count = sum(len(set(names)) for group in others for names in group.devices)
        yield f"and {count} more devices in {sum(len(group.numbers) for group in others)} replicas"
    machines = {
        cluster.devices[span.device].machine
        for replica in assignment.replicas
        for span in replica.spans
    }
    if len(machines) > 1 and len(assignment.replicas) > 1:
        yield (
            f"═ between machines: {_rate(cluster)}; "
            f"gradients of {len(machines)} machines are added up over it"
        )


def _share(group: ReplicaGroup, batch_size: int, *, micro_batches: bool) -> str:
    samples = group.replica.samples
    text = f"{samples} sample{'s' if samples > 1 else ''}, {samples / batch_size:.1%}"
    if len(group.numbers) > 1:
        text += " each"
    count = group.replica.num_micro_batches
    return text if count == 1 or not micro_batches else f"{text}, {count} micro-batches"


def _layers(span: Span, model: ModelCosts) -> tuple[str, str]:
    first, last = model.layers[span.first].name, model.layers[span.end - 1].name
    count = span.end - span.first
    return (first, "1 layer") if count == 1 else (f"{first}..{last}", f"{count} layers")


def _passing(group: ReplicaGroup, profile: CostProfile) -> list[str]:
    spans, cluster = group.replica.spans, profile.cluster
    found: list[str] = []
    for before, after in itertools.pairwise(spans):
        size = profile.model.layers[before.end - 1].boundary_bytes * group.replica.micro_batch
        machines = {cluster.devices[span.device].machine for span in (before, after)}
        text = format_bytes(size)
        found.append(f"═▼ {text}, {_rate(cluster)} " if len(machines) > 1 else f"─▼ {text} ")
    return found


def _rate(cluster: Cluster) -> str:
    return f"{cluster.network.bytes_per_second / 1e9:.3g} GB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSpan:
    begin_seconds: float  # Start, in seconds since the start of the step
    end_seconds: float  # End, in seconds since the start of the step
    mark: str  # Character that is drawn
    label: str = ""  # Number of the micro-batch, drawn first if there is room for all of them


def paint(
    activities: Sequence[DrawnSpan], seconds: float, columns: int, *, labels: bool = True
) -> str:
    """Return the row of a device: ``columns`` characters for a step of ``seconds``.

    >>> forward = DrawnSpan(begin_seconds=0.0, end_seconds=2.0, mark=">", label="0")
    >>> backward = DrawnSpan(begin_seconds=2.0, end_seconds=6.0, mark="<", label="0")
    >>> paint([forward, backward], 8.0, 16)
    '0>>>0<<<<<<<....'
    """
    row = ["."] * columns
    for activity in activities:
        begin, end = _columns(activity, seconds, columns)
        text = activity.label if labels else ""
        row[begin:end] = text + activity.mark * (end - begin - len(text))
    return "".join(row)


def _columns(activity: DrawnSpan, seconds: float, columns: int) -> tuple[int, int]:
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
    times = prediction.replicas[number].timeline
    if times is None:
        forward, backward = prediction.replicas[number].passes[0]
        one_stage: list[TimedTask] = []
        now = 0.0
        for micro_batch in range(group.replica.num_micro_batches):
            one_stage.append(TimedTask(Task("forward", 0, micro_batch), now, now + forward))
            now += forward + backward
            one_stage.append(TimedTask(Task("backward", 0, micro_batch), now - backward, now))
        yield group.labels[0], one_stage
        return
    first_stages: dict[int, int] = {}
    for stage, span in enumerate(group.replica.spans):
        first_stages.setdefault(span.device, stage)
    for stage, tasks in zip(first_stages.values(), times.events, strict=True):
        yield group.labels[stage], tasks


def _spans(
    tasks: Sequence[TimedTask], group: ReplicaGroup, prediction: Prediction
) -> Iterator[DrawnSpan]:
    """Yield the activities of a device: weights arrive, passes, gradients are sent, update."""
    replica = prediction.replicas[group.numbers[0]]
    waits = replica.arrival_seconds
    yield DrawnSpan(begin_seconds=0.0, end_seconds=waits, mark="=")
    for task, begin, end in tasks:
        yield DrawnSpan(
            begin_seconds=waits + begin,
            end_seconds=waits + end,
            mark=_MARKS[task.kind],
            label=str(task.micro_batch) if group.replica.num_micro_batches > 1 else "",
        )
    updates = replica.seconds - replica.update_seconds
    computed = updates - (replica.communication_seconds - waits)
    yield DrawnSpan(begin_seconds=computed, end_seconds=updates, mark="=")
    yield DrawnSpan(begin_seconds=updates, end_seconds=replica.seconds, mark="u")
