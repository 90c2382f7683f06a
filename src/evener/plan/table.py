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
from evener.plan.parts import HOST, Predicted, Replica

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
    sections = [
        f"Plan: {plan.layout}, {_counted(len(plan.devices), 'device')}, "
        f"{_counted(len(plan.replicas), 'replica')}",
        _devices(plan),
        _owners(plan),
        _replicas(plan),
    ]
    if plan.recompute:
        sections.append(_titled("Recomputed in the backward pass", ", ".join(plan.recompute)))
    if plan.batch_norm != "synchronized":
        sections.append(_titled("BatchNormalization", "by the samples of each device"))
    if plan.predicted is not None:
        sections.append(_predicted(plan, plan.predicted))
    if plan.rejected:
        rows = [(rejected.layout, rejected.reason) for rejected in plan.rejected]
        sections.append(_titled("Rejected", _table([("layout", False), ("why", False)], rows)))
    return "\n\n".join(sections)


def _devices(plan: Plan) -> str:
    columns = [("device", False), ("kind", False), ("memory", True)]
    rows = [(device.name, device.kind, _size(device.memory_bytes)) for device in plan.devices]
    return _titled("Devices", _table(columns, rows))


def _owners(plan: Plan) -> str:
    if isinstance(plan.owners, str):
        return _titled("Owners", f"{plan.owners}: {_OWNER_WORDS[plan.owners]}")
    rows = [(rule.pattern, rule.device) for rule in plan.owners]
    columns = [("variables", False), ("owner", False)]
    return _titled("Owners (the first match wins)", _table(columns, rows))


def _replicas(plan: Plan) -> str:
    columns = [
        ("replica", True),
        ("share", True),
        ("of a\nbatch", True),
        ("micro-\nbatches", True),
        ("in\nflight", True),
        ("stage", True),
        ("device", False),
        ("layers", False),
    ]
    rows: list[tuple[str, ...]] = []
    for number, (replica, fraction) in enumerate(zip(plan.replicas, plan.fractions, strict=True)):
        about = (
            str(number),
            f"{replica.share:g}",
            f"{fraction:.1%}",
            str(replica.num_micro_batches),
            str(replica.in_flight),
        )
        for index, stage in enumerate(replica.stages):
            shown = about if index == 0 else ("",) * len(about)
            rows.append((*shown, str(index), stage.device, ", ".join(stage.layers)))
    table = _titled("Replicas", _table(columns, rows))
    return "\n".join([table, *_schedules(plan.replicas)])


def _schedules(replicas: Sequence[Replica]) -> list[str]:
    found: dict[str, list[str]] = {}
    for number, replica in enumerate(replicas):
        # One micro-batch in one stage can be computed in one order only.
        if replica.num_micro_batches > 1 or len(replica.stages) > 1:
            found.setdefault(replica.schedule, []).append(str(number))
    if len(found) == 1:
        return [f"  schedule {next(iter(found))}"]
    return [f"  schedule {name} of {', '.join(numbers)}" for name, numbers in found.items()]


def _predicted(plan: Plan, predicted: Predicted) -> str:
    memory = {device.name: device.memory_bytes for device in plan.devices}
    title = f"Predicted: {format_seconds(predicted.step_seconds)} a step"
    rows: list[tuple[str, str, str]] = []
    for name in (*memory, HOST):
        if name in predicted.peak_bytes:
            peak, total = predicted.peak_bytes[name], memory.get(name)
            rows.append((name, format_bytes(peak), f"{peak / total:.1%}" if total else "-"))
    columns = [("device", False), ("peak", True), ("of its memory", True)]
    return _titled(title, _table(columns, rows)) if rows else title


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


def _size(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else format_bytes(num_bytes)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
