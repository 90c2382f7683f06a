"""Benchmark of a program on its own machine: the same script under several layouts, in turns.

Every layout is run in a process of its own (`evener.run.bench_child`), which answers with the times
of its steps. What disturbs the machine meanwhile disturbs all of them. Importing this file does not
import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.base.records import from_json, to_json
from evener.base.text import format_seconds
from evener.errors import RunError
from evener.plan import Plan
from evener.run.first_step import ask_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A layout to measure."""

    name: str  # Name in the table.
    command: str = ""  # Command that runs the script so; empty if there is none.
    # ``"mirrored"`` for TensorFlow's `MirroredStrategy`.
    kind: Literal["evener", "mirrored"] = "evener"
    shares: str | None = None  # ``"even"``, or None for measured shares.
    plan: Plan | None = None  # None for devices and shares.
    jit_compile: bool | None = None  # Value of ``jit_compile``; None for that of the script.
    problem: str = ""  # Reason why it cannot run; empty if it can.


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """Request to a process: a script to run for some steps."""

    target: str  # Path of a script, or name of a module.
    is_module: bool = False
    args: tuple[str, ...] = ()  # Command line arguments of the script.
    layout: Contender = Contender(name="")
    devices: str | None = None  # Device spec; None for ``EVENER_DEVICES``, else all.
    num_warm_up: int = 10  # Steps before the first that is timed.
    num_steps: int = 40  # Steps to time.
    record: str = ""  # Folder for a record of the run; empty for none.


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSteps:
    """Answer of a process."""

    seconds: tuple[float, ...] = ()  # Time of each timed step.
    batch_size: int | None = None  # Samples of a step; None if unknown.
    problem: str = ""  # Reason why no step was timed; empty if there are some.
    is_failure: bool = False  # Whether the program has ended with an error.


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    contender: Contender
    rounds: tuple[float, ...] = ()  # Median seconds of a step, in each round.
    batch_size: int | None = None
    problem: str = ""  # Reason why it was not measured; empty if it was.

    @property
    def step_seconds(self) -> float | None:
        return median(self.rounds) if self.rounds else None


def contenders(
    devices: Sequence[str], *, spec: str | None, words: str, planned: Plan | str, with_xla: bool
) -> list[Contender]:
    command = "evener run " + ("" if spec is None else f"--devices {spec} ")
    plan = planned if isinstance(planned, Plan) else None
    # One device on the CPU is all of it.
    alone = "cpu:1" if devices[0].startswith("cpu:") else devices[0]
    layouts = [
        Contender(
            name=f"{devices[0]} alone",
            command=f"evener run --devices {alone} {words}",
            plan=Plan.data_parallel(devices[:1]),
        ),
        Contender(name="MirroredStrategy", kind="mirrored"),
        Contender(
            name="evener, even shares", command=f"{command}--shares even {words}", shares="even"
        ),
        Contender(name="evener, measured shares", command=f"{command}{words}"),
        Contender(
            name="evener, planned" + (f": {plan.layout}" if plan else ""),
            command=f"{command}--plan auto {words}",
            plan=plan,
            problem="" if plan else str(planned),
        ),
    ]
    if not with_xla:
        return layouts
    return [
        replace(each, name=f"{each.name}, {'with' if jit else 'without'} XLA", jit_compile=jit)
        for each in layouts
        for jit in (False, True)
    ]


def measure(
    layouts: Sequence[Contender],
    request: TimedRun,
    *,
    num_rounds: int,
    limit_seconds: float,
    tell: Callable[[str], object],
) -> list[BenchRow]:
    rows = [BenchRow(contender=each, problem=each.problem) for each in layouts]
    for number in range(num_rounds):
        for index, row in enumerate(rows):
            if row.problem:
                continue
            tell(f"round {number + 1} of {num_rounds}: {row.contender.name}")
            times = run_once(row.contender, request, limit_seconds=limit_seconds)
            if times.is_failure and not index:
                # On one device, as it is: others would fail in the same way.
                raise RunError(
                    "RUN-113",
                    f"{request.target} ends with an error on {row.contender.name}.",
                    why=f"{times.problem}.",
                    fix=f"Mend it first: {row.contender.command}",
                )
            if times.problem:
                rows[index] = replace(row, rounds=(), problem=times.problem)
            else:
                rounds, size = (*row.rounds, median(times.seconds)), times.batch_size
                rows[index] = replace(row, rounds=rounds, batch_size=size or row.batch_size)
    # The batch is that of the script in all of them.
    batch_size = next((row.batch_size for row in rows if row.batch_size), None)
    return [replace(row, batch_size=batch_size) for row in rows]


def run_once(
    contender: Contender, request: TimedRun, *, limit_seconds: float, record: str = ""
) -> TimedSteps:
    """Run a contender in a process of its own; ``record`` is a folder for a record of the run."""
    asked = to_json(replace(request, layout=contender, record=record))
    done, answer = ask_module("evener.run.bench_child", asked, limit_seconds=limit_seconds)
    if answer is not None:
        return from_json(answer, TimedSteps)
    if done.exit_code is None:
        return TimedSteps(problem=f"stopped after {limit_seconds:g} seconds")
    last = (done.output.strip().splitlines() or ["it printed nothing"])[-1]
    problem = f"ended with code {done.exit_code}: {last[:300]}"
    return TimedSteps(problem=problem, is_failure=bool(done.exit_code))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    rows: tuple[BenchRow, ...]
    limit: str = ""  # Sentence on what limits the fastest layout of several devices.
    record: str = ""  # Folder with its record; empty if there is none.

    def to_json(self) -> str:
        best = fastest(self.rows)
        of_contender, of_row = (
            ("name", "command"),
            ("step_seconds", "rounds", "batch_size", "problem"),
        )
        rows = [
            {name: getattr(row.contender, name) for name in of_contender}
            | {name: getattr(row, name) for name in of_row}
            for row in self.rows
        ]
        first = None if best is None else best.contender.name
        return to_json({"rows": rows, "fastest": first, "limit": self.limit, "record": self.record})


def fastest(rows: Sequence[BenchRow]) -> BenchRow | None:
    timed = [row for row in rows if row.step_seconds]
    return min(timed, key=lambda row: row.step_seconds or 0.0, default=None)


def overlapping(best: BenchRow, rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Return the other contenders that were at least once as fast as the fastest at its slowest."""
    return [
        row for row in rows if row is not best and min(row.rounds, default=1e9) <= max(best.rounds)
    ]


def print_result(result: BenchResult, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layout", overflow="fold")
    for name in ("a step", "range", "samples/s", "times as fast"):
        table.add_column(name, justify="right")
    alone = result.rows[0].step_seconds
    for row in result.rows:
        seconds, cells = row.step_seconds, ["not measured", "", "", ""]
        if seconds is not None:
            low, high = format_seconds(min(row.rounds)), format_seconds(max(row.rounds))
            cells = [
                format_seconds(seconds),
                f"{low} to {high}",
                f"{row.batch_size / seconds:,.0f}" if row.batch_size else "?",
                f"{alone / seconds:.2f}" if alone else "?",
            ]
        table.add_row(Text(row.contender.name), *map(Text, cells))
    console.print(table)
    lines = [f"{row.contender.name}: {row.problem}" for row in result.rows if row.problem]
    if result.limit:
        lines.append(f"What limits it: {result.limit}")
    if result.record:
        lines.append(f"See for yourself: evener report {result.record}")
    best = fastest(result.rows)
    if best is not None:
        others = "; ".join(row.contender.name for row in overlapping(best, result.rows))
        if others:
            lines.append(
                f"Not certain: the range of the fastest overlaps with that of {others}. "
                "More --rounds on a quiet machine tell more."
            )
        command = best.contender.command
        lines.append(f"Use: {command}" if command else f"The fastest is {best.contender.name}.")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
