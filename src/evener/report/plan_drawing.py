"""A plan as a picture: a row for each device with its layers, and the bytes between stages.

::

             ┌──────────────────────────────────┐
     gpu:0   │ embedding..block_5      7 layers │ 320 samples, 83.3%
             ├─▼ 16.8 MiB ──────────────────────┤     bytes to the next stage, per micro-batch
     gpu:1   │ block_6..head           5 layers │
             ├──────────────────────────────────┤     another replica: no activations sent
     gpu:2   │ embedding..head        12 layers │ 64 samples, 16.7%
             └──────────────────────────────────┘
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator

from evener.cost_model.assignment import Assignment, Span
from evener.profile import Cluster, CostProfile, ModelCosts
from evener.report.plan_groups import (
    MOST_ROWS,
    ReplicaGroup,
    replica_groups,
    shortened,
    widest_label,
)
from evener.units import format_bytes

_LEAST_BOX, _WIDEST_BOX = 10, 56


def draw_stages(assignment: Assignment, profile: CostProfile, *, width: int) -> list[str]:
    """Return the lines of the picture.

    Args:
        assignment: Layers and samples of each device.
        profile: The layers, the devices and their links.
        width: Number of columns, at least 40.
    """
    groups = replica_groups(assignment, profile.cluster)
    drawn = _first_rows(groups)
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
        arrows = [f"{blank}{_arrow(text, box)}" for text in _passing(group, profile)]
        for stage, span in enumerate(group.replica.spans):
            label = shortened(group.labels[stage], label_width)
            row = f" {label:{label_width}} │ {_in_box(*_layers(span, profile.model), box)} │"
            lines.append(f"{row} {share}" if stage == 0 else row)
            lines += arrows[stage : stage + 1]
    lines.append(f"{blank}└{'─' * (box + 2)}┘")
    for note in _notes(groups[len(drawn) :], assignment, profile.cluster):
        lines += [f" {line}" for line in textwrap.wrap(note, width - 1)]
    return lines


def _first_rows(groups: list[ReplicaGroup]) -> list[ReplicaGroup]:
    """Return the first groups with `MOST_ROWS` devices in all; at least one group."""
    drawn = 0
    for number, group in enumerate(groups):
        drawn += len(group.devices)
        if number and drawn > MOST_ROWS:
            return groups[:number]
    return groups


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
    """Return the samples of each replica of a group."""
    samples = group.replica.samples
    text = f"{samples} sample{'s' if samples > 1 else ''}, {samples / batch_size:.1%}"
    if len(group.numbers) > 1:
        text += " each"
    count = group.replica.num_micro_batches
    return text if count == 1 or not micro_batches else f"{text}, {count} micro-batches"


def _layers(span: Span, model: ModelCosts) -> tuple[str, str]:
    """Return the first and the last layer of a stage, and the number of layers."""
    first, last = model.layers[span.first].name, model.layers[span.end - 1].name
    count = span.end - span.first
    return (first, "1 layer") if count == 1 else (f"{first}..{last}", f"{count} layers")


def _in_box(names: str, count: str, width: int) -> str:
    names = shortened(names, width - len(count) - 1)
    return f"{names}{count:>{width - len(names)}}"


def _passing(group: ReplicaGroup, profile: CostProfile) -> list[str]:
    """Return the text for each pair of successive stages; it begins with ``═`` between machines."""
    spans, cluster = group.replica.spans, profile.cluster
    found: list[str] = []
    for before, after in itertools.pairwise(spans):
        size = profile.model.layers[before.end - 1].boundary_bytes * group.replica.micro_batch
        machines = {cluster.devices[span.device].machine for span in (before, after)}
        text = format_bytes(size)
        found.append(f"═▼ {text}, {_rate(cluster)} " if len(machines) > 1 else f"─▼ {text} ")
    return found


def _arrow(text: str, box: int) -> str:
    is_far = text.startswith("═")
    line = text[: box + 2] + text[0] * (box + 2 - len(text))
    return f"╞{line}╡" if is_far else f"├{line}┤"


def _rate(cluster: Cluster) -> str:
    """Return the bandwidth of the network, in the units of datasheets."""
    return f"{cluster.network.bytes_per_second / 1e9:.3g} GB/s"
