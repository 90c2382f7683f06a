"""Plain text table of a Plan, the same on every terminal: 80 columns, unless names are long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from evener.base.terminal import text_of
from evener.base.text import format_bytes, format_seconds
from evener.plan.parts import HOST

if TYPE_CHECKING:
    from evener.plan.plan import Plan

WIDTH = 80

_OWNER_WORDS = {
    "sharded": "every variable on one device, spread by bytes",
    "central": "every variable on the host (cpu:0)",
}

# Heading of a column, and whether its cells are numbers, which are right-aligned.
_Column = tuple[str, bool]


def render_plan(plan: Plan) -> str:
    """Return the plan as text: devices, owners, replicas, prediction and rejected alternatives."""
    memory = {device.name: device.memory_bytes for device in plan.devices}
    devices = [
        (
            device.name,
            device.kind,
            format_bytes(size) if (size := device.memory_bytes) else "unknown",
        )
        for device in plan.devices
    ]
    if isinstance(plan.owners, str):
        owners = _titled("Owners", f"{plan.owners}: {_OWNER_WORDS[plan.owners]}")
    else:
        rules = [(rule.pattern, rule.device) for rule in plan.owners]
        table = _table([("variables", False), ("owner", False)], rules)
        owners = _titled("Owners (the first match wins)", table)
    replicas: list[tuple[str, ...]] = []
    schedules: dict[str, list[str]] = {}
    for number, (replica, fraction) in enumerate(zip(plan.replicas, plan.fractions, strict=True)):
        counts = map(str, (replica.num_micro_batches, replica.in_flight))
        about = (str(number), _number(replica.share), f"{fraction:.1%}", *counts)
        for index, stage in enumerate(replica.stages):
            shown = about if index == 0 else ("",) * len(about)
            replicas.append((*shown, str(index), stage.device, ", ".join(stage.layers)))
        # One micro-batch in one stage can be computed in one order only.
        if replica.num_micro_batches > 1 or len(replica.stages) > 1:
            schedules.setdefault(replica.schedule, []).append(str(number))
    schedule_lines = [
        f"  schedule {name}" + (f" of {', '.join(numbers)}" if len(schedules) > 1 else "")
        for name, numbers in schedules.items()
    ]
    headings = ("replica", "share", "of a\nbatch", "micro-\nbatches", "in\nflight", "stage")
    columns = [*((heading, True) for heading in headings), ("device", False), ("layers", False)]
    sections = [
        f"Plan: {plan.layout}, {_counted(len(devices), 'device')}, "
        f"{_counted(len(plan.replicas), 'replica')}",
        _titled("Devices", _table([("device", False), ("kind", False), ("memory", True)], devices)),
        owners,
        "\n".join([_titled("Replicas", _table(columns, replicas)), *schedule_lines]),
    ]
    if plan.recompute:
        sections.append(_titled("Recomputed in the backward pass", ", ".join(plan.recompute)))
    if plan.batch_norm != "synchronized":
        sections.append(_titled("BatchNormalization", "by the samples of each device"))
    if plan.predicted is not None:
        title = f"Predicted: {format_seconds(plan.predicted.step_seconds)} a step"
        peaks = [
            (name, format_bytes(peak), f"{peak / total:.1%}" if total else "-")
            for name in (*memory, HOST)
            if (peak := plan.predicted.peak_bytes.get(name)) is not None
            for total in [memory.get(name)]
        ]
        columns = [("device", False), ("peak", True), ("of its memory", True)]
        sections.append(_titled(title, _table(columns, peaks)) if peaks else title)
    if plan.rejected:
        rows = [(rejected.layout, rejected.reason) for rejected in plan.rejected]
        sections.append(_titled("Rejected", _table([("layout", False), ("why", False)], rows)))
    return "\n\n".join(sections)


def _titled(title: str, body: str) -> str:
    return f"{title}\n{body}" if body.startswith(" ") else f"{title}\n  {body}"


def _table(columns: Sequence[_Column], rows: Iterable[Sequence[str]]) -> str:
    # Text, not str: rich would read a layer pattern such as "block[12]" as markup.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=True)
    for heading, is_number in columns:
        table.add_column(
            heading,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number or heading == "device",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # No word is broken: with long names, the table is wider.
    wide = Console(width=10 * WIDTH)
    width = max(WIDTH, Measurement.get(wide, wide.options, table).minimum)
    text = text_of(lambda console: console.print(table), width)
    return "\n".join(line for line in text.splitlines() if line.strip())


def _number(value: float) -> str:
    """Return a share: samples with all digits, other numbers with six."""
    return str(int(value)) if value.is_integer() and value < 1e15 else f"{value:g}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
