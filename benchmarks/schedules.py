"""Bubbles and kept activations of the pipeline schedules: counted, beside the formulas.

No device is needed: every stage takes the same time, on a device of its own. A forward pass
takes 1, a backward pass 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side.figures import Aim, terminal, write_json

from evener.plan import (
    Replica,
    ScheduleName,
    Stage,
)
from evener.schedule import (
    Schedule,
    Task,
    Timeline,
    schedule_for,
    timeline,
)

DEVICES = (2, 4, 8, 16)
MICRO_BATCHES = (4, 16, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A schedule and what its paper says; p devices, m micro-batches.

    Live activations are those of the device that keeps most, in micro-batches through all
    its layers.
    """

    schedule: ScheduleName
    in_flight: Callable[[int, int], int]
    bubble: Callable[[int, int], float]
    peak_live: Callable[[int, int], float]


CONTENDERS = {
    "gpipe": Contender(
        schedule="gpipe",
        in_flight=lambda p, m: m,
        bubble=lambda p, m: (p - 1) / (m + p - 1),
        peak_live=lambda p, m: m,
    ),
    "1f1b": Contender(
        schedule="1f1b",
        in_flight=lambda p, m: p,
        bubble=lambda p, m: (p - 1) / (m + p - 1),
        peak_live=lambda p, m: p,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Counted bubble and memory of a schedule, beside the formula."""

    num_devices: int
    num_micro_batches: int
    contender: str
    in_flight: int
    bubble: float
    bubble_formula: float
    peak_live: float
    peak_live_formula: float


def measure(name: str, p: int, m: int) -> Row:
    """Count one schedule."""
    contender = CONTENDERS[name]
    devices = [f"gpu:{i}" for i in range(p)]
    replica = Replica(
        share=1,
        stages=tuple(Stage(device=d, layers=(f"block_{i}",)) for i, d in enumerate(devices)),
        num_micro_batches=m,
        in_flight=contender.in_flight(p, m),
        schedule=contender.schedule,
    )
    schedule = schedule_for(replica)
    times = timeline(schedule, {"forward": 1.0, "backward": 2.0})
    return Row(
        num_devices=p,
        num_micro_batches=m,
        contender=name,
        in_flight=replica.in_flight,
        bubble=times.bubble,
        bubble_formula=contender.bubble(p, m),
        peak_live=_most_on_a_device(schedule, times),
        peak_live_formula=contender.peak_live(p, m),
    )


def _most_on_a_device(schedule: Schedule, times: Timeline) -> int:
    """Return the most micro-batches alive at once in all stages of one device."""
    if len(schedule.devices) == schedule.num_stages:
        return max(times.peak_live)
    most = 0
    for order in schedule.orders:
        live: set[Task] = set()
        for task in order:
            forward = task._replace(kind="forward")
            live = live | {forward} if task.kind == "forward" else live - {forward}
            most = max(most, len(live))
    return most


def rows() -> Iterator[Row]:
    """Yield every schedule at every size of at least as many micro-batches as devices."""
    for p in DEVICES:
        for m in MICRO_BATCHES:
            if m >= p:
                yield from (measure(name, p, m) for name in CONTENDERS)


def main(
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/schedules.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if a formula is missed")] = False,
) -> None:
    """Count bubbles and live activations of every schedule."""
    counted = list(rows())
    console = terminal()
    console.print(_table(counted))
    aims = [
        Aim(what=f"{what}, largest difference", wanted=1e-9, got=got, at_least=False)
        for what, got in {
            "bubble": max(abs(row.bubble - row.bubble_formula) for row in counted),
            "live activations": max(abs(row.peak_live - row.peak_live_formula) for row in counted),
        }.items()
    ]
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    figures: dict[str, Any] = {"schedules": [asdict(row) for row in counted]}
    write_json(json, figures, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


def _table(counted: list[Row]) -> Table:
    title = "bubble and live activations, counted (by formula)"
    table = Table(title=title, title_justify="left")
    for heading in ("devices", "micro-batches"):
        table.add_column(heading, justify="right")
    table.add_column("schedule", no_wrap=True)
    for heading in ("in flight", "bubble", "peak live activations"):
        table.add_column(heading, justify="right")
    last = len(CONTENDERS) - 1
    for number, row in enumerate(counted):
        is_first, is_last = number % (last + 1) == 0, number % (last + 1) == last
        table.add_row(
            str(row.num_devices) if is_first else "",
            str(row.num_micro_batches) if is_first else "",
            row.contender,
            str(row.in_flight),
            f"{row.bubble:.4f} ({row.bubble_formula:.4f})",
            f"{row.peak_live:g} ({row.peak_live_formula:g})",
            end_section=is_last,
        )
    return table


if __name__ == "__main__":
    typer.run(main)
