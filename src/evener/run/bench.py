"""Benchmark of a program on its own machine: the same script under several layouts, in turns.

Every layout is run in a process of its own (`evener.run.bench_child`), which answers with the
times of its steps. Importing this file does not import TensorFlow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.base.text import format_seconds
from evener.plan import Plan
from evener.recording.reading import Summary
from evener.run.child_process import ask_module

# Limits of a run, by the figures of its record.

_LEAST = 0.15
"""Fraction of a step from which a limit is named."""


def limit_of(summary: Summary) -> str:
    """Return a sentence on what takes the largest part of a step beside computing."""
    step, inside = summary.step_seconds, summary.inside_seconds
    if not step or not inside or not summary.inside:
        return "Not known: no step was recorded."
    parts: list[tuple[float, str]] = []
    outside = max(0.0, step - inside) / step
    parts.append(
        (
            outside,
            "is outside of the step: input data, callbacks and Python. Larger batches, "
            "steps_per_execution in compile, and Dataset.prefetch make it smaller",
        )
    )
    for device, time in summary.inside.items():
        length = (time.length or inside) / (1.0 - outside or 1.0)
        parts += [
            (
                seconds / length,
                f"{device} waits for {other}. Other shares may help",
            )
            for other, seconds in time.wait.items()
        ]
        parts.append(
            (
                time.copy / length,
                f"{device} waits for copies and sums. Larger batches need fewer of them",
            )
        )
        parts.append((time.update / length, f"{device} updates variables"))
        parts.append((time.once / length, f"{device} computes what is not divided"))
    fraction, words = max(parts)
    if fraction < _LEAST:
        return "The devices compute for most of the step: more or faster devices would help."
    return f"{fraction:.0%} of a step ".replace("%", " %") + words + "."


# Request to a process of a benchmark, and its answer: JSON on its command line and in a file.

Kind = Literal["evener", "mirrored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """A script to run for some steps."""

    target: str  # Path of a script, or name of a module
    is_module: bool = False  # Whether it is a module
    args: tuple[str, ...] = ()  # Command line arguments of the script
    kind: Kind = "evener"  # ``"evener"``, or ``"mirrored"`` for TensorFlow's `MirroredStrategy`
    devices: str | None = None  # Device spec; None for ``EVENER_DEVICES``, else all
    shares: str | None = None  # ``"even"``, or None for shares that are measured while training
    plan: str = ""  # Plan as JSON; excludes ``shares``. Empty for none
    # Value of ``jit_compile`` for ``Model.compile``; None for that of the script
    jit_compile: bool | None = None
    num_warm_up: int = 10  # Steps before the first that is timed
    num_steps: int = 40  # Steps to time
    record: str = ""  # Folder for a record of the run; empty for none

    def to_json(self) -> str:
        """Return the request as the process reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TimedRun:
        fields = json.loads(text)
        return cls(**{**fields, "args": tuple(fields["args"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Answer of a process."""

    seconds: tuple[float, ...] = ()  # Time of each timed step
    batch_size: int | None = None  # Samples of a step; None if unknown
    problem: str = ""  # Reason why no step was timed; empty if there are some

    def to_json(self) -> str:
        """Return the answer as the parent reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StepTimes:
        fields = json.loads(text)
        return cls(**{**fields, "seconds": tuple(fields["seconds"])})


# Layouts that a benchmark compares, each with the command that gives it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A layout to measure."""

    name: str  # Name in the table
    command: str = ""  # Command that runs the script so; empty if there is none
    kind: Kind = "evener"  # Strategy of the run
    shares: str | None = None  # ``"even"``, or None for measured shares
    plan: Plan | None = None  # Plan; None for devices and shares
    jit_compile: bool | None = None  # Value of ``jit_compile``; None for that of the script
    problem: str = ""  # Reason why it cannot run; empty if it can


def contenders(
    devices: Sequence[str], *, spec: str | None, words: str, planned: Plan | str, with_xla: bool
) -> list[Contender]:
    option = "" if spec is None else f"--devices {spec} "
    plan = planned if isinstance(planned, Plan) else None
    found = [
        Contender(
            name=f"{devices[0]} alone",
            # One device on the CPU is all of it.
            command=f"evener run --devices {_alone(devices[0])} {words}",
            plan=Plan.data_parallel(devices[:1]),
        ),
        Contender(name="MirroredStrategy", kind="mirrored"),
        Contender(
            name="evener, even shares",
            command=f"evener run {option}--shares even {words}",
            shares="even",
        ),
        Contender(name="evener, measured shares", command=f"evener run {option}{words}"),
        Contender(
            name="evener, planned" + (f": {plan.layout}" if plan else ""),
            command=f"evener run {option}--plan auto {words}",
            plan=plan,
            problem="" if plan else str(planned),
        ),
    ]
    if not with_xla:
        return found
    return [_with_jit(each, jit=jit) for each in found for jit in (False, True)]


def _alone(device: str) -> str:
    return "cpu:1" if device.startswith("cpu:") else device


def _with_jit(contender: Contender, *, jit: bool) -> Contender:
    return Contender(
        name=f"{contender.name}, {'with' if jit else 'without'} XLA",
        command=contender.command,
        kind=contender.kind,
        shares=contender.shares,
        plan=contender.plan,
        jit_compile=jit,
        problem=contender.problem,
    )


# Processes of a benchmark, in turns: what disturbs the machine meanwhile disturbs all.


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of a contender."""

    contender: Contender  # Contender
    rounds: tuple[float, ...] = ()  # Median seconds of a step, in each round
    batch_size: int | None = None  # Samples of a step; None if unknown
    problem: str = ""  # Reason why it was not measured; empty if it was

    @property
    def step_seconds(self) -> float | None:
        return median(self.rounds) if self.rounds else None


def measure(
    found: Sequence[Contender],
    request: TimedRun,
    *,
    num_rounds: int,
    limit_seconds: float,
    tell: Callable[[str], object],
) -> list[Measured]:
    """Run every contender in every round, one after the other.

    A contender that fails is left out of later rounds.
    """
    results = [Measured(contender=each, problem=each.problem) for each in found]
    for number in range(num_rounds):
        for place, result in enumerate(results):
            if result.problem:
                continue
            tell(f"round {number + 1} of {num_rounds}: {result.contender.name}")
            times = run_once(result.contender, request, limit_seconds=limit_seconds)
            results[place] = _with(result, times)
    sizes = [result.batch_size for result in results if result.batch_size]
    # The batch is that of the script in all of them.
    return [replace(result, batch_size=next(iter(sizes), None)) for result in results]


def run_once(
    contender: Contender, request: TimedRun, *, limit_seconds: float, record: str = ""
) -> StepTimes:
    asked = replace(
        request,
        kind=contender.kind,
        shares=contender.shares,
        plan=contender.plan.to_json() if contender.plan else "",
        jit_compile=contender.jit_compile,
        record=record,
    )
    done, answer = ask_module(
        "evener.run.bench_child", asked.to_json(), limit_seconds=limit_seconds
    )
    if answer is not None:
        return StepTimes.from_json(answer)
    if done.exit_code is None:
        return StepTimes(problem=f"stopped after {limit_seconds:g} seconds")
    last = (done.output.strip().splitlines() or ["it printed nothing"])[-1]
    return StepTimes(problem=f"ended with code {done.exit_code}: {last[:300]}")


def _with(result: Measured, times: StepTimes) -> Measured:
    if times.problem:
        return replace(result, rounds=(), problem=times.problem)
    return replace(
        result,
        rounds=(*result.rounds, median(times.seconds)),
        batch_size=times.batch_size or result.batch_size,
    )


# Result of a benchmark, as text and as JSON.


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Result of a benchmark."""

    rows: tuple[Measured, ...]  # Contenders with their times
    # Sentence on what limits the fastest layout of several devices; empty if unknown
    limit: str = ""
    record: str = ""  # Folder with its record; empty if there is none

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
