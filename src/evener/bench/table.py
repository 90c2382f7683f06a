"""Result of a benchmark, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.bench.turns import Measured
from evener.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Result of a benchmark.

    Attributes:
        rows: Contenders with their times.
        limit: Sentence on what limits the fastest layout of several devices; empty if unknown.
        record: Folder with its record; empty if there is none.
    """

    rows: tuple[Measured, ...]
    limit: str = ""
    record: str = ""

    @property
    def fastest(self) -> Measured | None:
        """Contender with the shortest step."""
        return fastest(self.rows)

    def to_json(self) -> str:
        """Return the result as one line of JSON."""
        best = self.fastest
        fields: dict[str, Any] = {
            "rows": [
                {
                    "name": row.contender.name,
                    "command": row.contender.command,
                    "step_seconds": row.step_seconds,
                    "rounds": row.rounds,
                    "batch_size": row.batch_size,
                    "problem": row.problem,
                }
                for row in self.rows
            ],
            "fastest": None if best is None else best.contender.name,
            "limit": self.limit,
            "record": self.record,
        }
        return json.dumps(fields, ensure_ascii=False)


def fastest(rows: Sequence[Measured]) -> Measured | None:
    """Return the contender with the shortest step; None if none was measured."""
    timed = [(row.step_seconds, place) for place, row in enumerate(rows) if row.step_seconds]
    return rows[min(timed)[1]] if timed else None


def overlapping(best: Measured, rows: Sequence[Measured]) -> list[Measured]:
    """Return the other contenders that were at least once as fast as the fastest at its slowest."""
    return [
        row for row in rows if row is not best and min(row.rounds, default=1e9) <= max(best.rounds)
    ]


def print_result(result: BenchResult, console: Console) -> None:
    """Print a result as a table, with what limits it and the command to use."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layout", overflow="fold")
    for name in ("a step", "range", "samples/s", "times as fast"):
        table.add_column(name, justify="right")
    alone = result.rows[0].step_seconds
    for row in result.rows:
        table.add_row(Text(row.contender.name), *map(Text, _cells(row, alone)))
    console.print(table)
    for row in result.rows:
        if row.problem:
            console.print(Text(f"{row.contender.name}: {row.problem}"), soft_wrap=True)
    if result.limit:
        console.print(Text(f"What limits it: {result.limit}"), soft_wrap=True)
    if result.record:
        console.print(Text(f"See for yourself: evener report {result.record}"), soft_wrap=True)
    best = result.fastest
    near = [] if best is None else overlapping(best, result.rows)
    if near:
        others = "; ".join(row.contender.name for row in near)
        text = (
            f"Not certain: the range of the fastest overlaps with that of {others}. More --rounds"
        )
        console.print(Text(f"{text} on a quiet machine tell more."), soft_wrap=True)
    if best is not None and best.contender.command:
        console.print(Text(f"Use: {best.contender.command}"), soft_wrap=True)
    elif best is not None:
        console.print(Text(f"The fastest is {best.contender.name}."), soft_wrap=True)


def _cells(row: Measured, alone: float | None) -> list[str]:
    seconds = row.step_seconds
    if seconds is None:
        return ["not measured", "", "", ""]
    low, high = format_seconds(min(row.rounds)), format_seconds(max(row.rounds))
    rate = f"{row.batch_size / seconds:,.0f}" if row.batch_size else "?"
    return [
        format_seconds(seconds),
        f"{low} to {high}",
        rate,
        f"{alone / seconds:.2f}" if alone else "?",
    ]
