"""A plan and its predicted cost as text: pictures, time, memory, remedies."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.cost_model.assignment import HOST_OWNER
from evener.planner import Planned
from evener.planner.alternatives import specialties
from evener.report.plan_drawing import draw_stages
from evener.report.plan_timeline import draw_timeline
from evener.terminal import standard_output
from evener.units import format_bytes, format_seconds

_BAR_WIDTH = 24
_SHORT_BAR_WIDTH = 16
# As wide as the table of the plan.
_WIDEST = 100
_PARTS = {
    "variables": "#",
    "fetched": "f",
    "gradients": "g",
    "activations": "a",
    "workspace": "w",
}


def print_planned(planned: Planned, console: Console | None = None) -> None:
    """Print a plan with its predicted cost.

    Args:
        planned: The plan.
        console: The console; None for standard output.
    """
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
    console.print(Text(f"\nMemory ({_legend()})"))
    console.print(memory_table(planned, console.width))
    if planned.problem:
        console.print(Text(f"\nDoes not fit: {planned.problem}."), soft_wrap=True)
    if planned.remedies:
        console.print(Text("\nWhat would help"))
        for remedy in planned.remedies:
            console.print(Text(f"  {remedy}"), soft_wrap=True)


def stage_lines(planned: Planned, width: int) -> list[str]:
    """Return a picture of the stages and the bytes between them, ``width`` columns wide."""
    return draw_stages(planned.assignment, planned.profile, width=min(width, _WIDEST))


def step_lines(planned: Planned, width: int) -> list[str]:
    """Return a picture of one step over time, ``width`` columns wide."""
    return draw_timeline(
        planned.assignment, planned.prediction, planned.profile.cluster, width=min(width, _WIDEST)
    )


def time_lines(planned: Planned) -> Iterator[str]:
    """Yield the predicted time of a step, and its parts for each replica."""
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
    """Return the memory of every device as a bar and its parts.

    Args:
        planned: The plan.
        width: Columns of the terminal; the bars are shorter on a narrow one.
    """
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
            letter * round(bar_width * parts[part] / whole) for part, letter in _PARTS.items()
        )
        largest = max(parts, key=lambda part: parts[part])
        table.add_row(
            Text(name),
            Text(f"[{bar[:bar_width]:{bar_width}}]"),
            Text(format_bytes(needed.total)),
            Text("-" if memory is None else format_bytes(memory)),
            Text(f"{_named(largest)} {format_bytes(parts[largest])}"),
        )
    return table


def _legend() -> str:
    return ", ".join(f"{letter} {_named(part)}" for part, letter in _PARTS.items())


def _named(part: str) -> str:
    return "weights of other devices" if part == "fetched" else part
