"""The report of `evener run --report`.

Devices, shares and notes, as a table or as JSON, when the run ends.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener._tf_private.random_numbers import is_deterministic
from evener.base.terminal import standard_error
from evener.base.text import format_bytes, format_seconds
from evener.errors import house_form
from evener.plan import Plan
from evener.planner.run_times import RunTimes, deviation, run_times
from evener.profiler.profile import hardware_of
from evener.recording.measured import (
    CountedWork,
    DeviceWork,
    count_work,
    owned_by_device,
    shares_of_devices,
    work_of_devices,
)
from evener.recording.reading import LEAST_FRACTION
from evener.run.session import Session
from evener.strategy import Strategy

_UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    script: str  # The path on the command line
    # The share of each device at the end, the samples it has trained on, its busy seconds, and the
    # variables it owns
    devices: tuple[DeviceWork, ...]
    changes: tuple[str, ...]  # Every change of shares, as a line
    settled: str  # Their number and the last shares, as a line; empty without changes
    # The operations that were computed once for the global batch, each as a line
    gathered: tuple[str, ...]
    notes: tuple[str, ...]  # The notes about the script, such as what was replaced
    plan: Plan  # The plan of the run, with what it predicted
    steps: RunTimes | None = None  # The times of the last steps; None if they were not timed
    # Results of the comparisons of a few samples with one device, each as a line
    checks: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the report as one line of JSON; `evener.planner.run_times.read_run` reads it."""
        fields = {**asdict(self), "plan": json.loads(self.plan.to_json())}
        return json.dumps(fields, ensure_ascii=False)


def device_table(devices: Sequence[DeviceWork]) -> Table:
    # The table has to fit in 80 columns.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    is_timed = any(device.busy_seconds is not None for device in devices)
    has_memory = any(device.memory is not None for device in devices)
    headings = ["device", "share", "samples", "computing", "variables", "owned", "in use (peak)"]
    hidden = {*([] if is_timed else ["computing"]), *([] if has_memory else ["in use (peak)"])}
    for heading in headings:
        if heading not in hidden:
            justify = "left" if heading == "device" else "right"
            table.add_column(heading, justify=justify, no_wrap=True)
    for work in devices:
        samples, seconds, memory = work.num_samples, work.busy_seconds, work.memory
        cells = [
            work.device,
            _UNKNOWN if work.share is None else f"{work.share:.1%}".replace("%", " %"),
            _UNKNOWN if samples is None else f"{samples:,}",
            _UNKNOWN if seconds is None else format_seconds(seconds),
            f"{work.owned.num_variables:,}",
            format_bytes(work.owned.num_bytes),
            _UNKNOWN
            if memory is None
            else f"{format_bytes(memory.current_bytes)} ({format_bytes(memory.peak_bytes)})",
        ]
        shown = zip(headings, cells, strict=True)
        table.add_row(*(Text(cell) for heading, cell in shown if heading not in hidden))
    return table


def step_times(strategy: Strategy) -> RunTimes | None:
    names = list(shares_of_devices(strategy))
    hardware = {name: hardware_of(name) for name in names}
    records = strategy.share_controller.step_records()
    # A step that is not partitioned is timed as a whole, updates included.
    return run_times(records, names, hardware, with_updates=not strategy.is_partitioned)


def compare_with_plan(
    plan: Plan | None, strategy: Strategy, report: Callable[[str], object], *, again: str
) -> None:
    if plan is None or plan.predicted is None:
        return
    found = deviation(plan.predicted, step_times(strategy))
    if found is not None:
        fix = f"Plan again with the times of a run: {again}"
        # Continuation lines of notes are indented.
        report(house_form("PROF-055", found.what, found.why, fix).replace("\n", "\n  "))


def report_of(
    script: str, strategy: Strategy, notes: Sequence[str], *, plan: Plan | None = None
) -> ScriptRun:
    shares = shares_of_devices(strategy)
    _, samples, seconds = CountedWork(strategy, from_now=False).read()
    is_counted = strategy.share_controller.counts and not is_deterministic()
    was_divided = bool(samples) or len(shares) < 2 or not is_counted
    devices = work_of_devices(
        shares, samples, seconds if samples else {}, owned_by_device(strategy)
    )
    return ScriptRun(
        script=script,
        devices=devices if was_divided else tuple(replace(d, share=None) for d in devices),
        changes=tuple(map(str, strategy.share_controller.events)),
        settled=strategy.share_controller.describe_changes(),
        gathered=tuple(dict.fromkeys(map(str, strategy.report().gathered))),
        notes=tuple(notes),
        plan=plan or strategy.plan,
        steps=step_times(strategy),
        checks=tuple(map(str, strategy.spot_checks)),
    )


def print_report(run: ScriptRun, *, as_json: bool, console: Console | None = None) -> None:
    if as_json:
        print(run.to_json(), flush=True)
        return
    console = standard_error() if console is None else console
    console.print(Text(f"\nevener run {run.script}"), soft_wrap=True)
    console.print(device_table(run.devices))
    if len(run.devices) > 1 and all(device.share is None for device in run.devices):
        console.print(Text("No training step was divided over these devices."))
    if run.steps is not None:
        seconds = format_seconds(run.steps.step_seconds)
        console.print(Text(f"A step: {seconds}, the median of {run.steps.num_steps}"))
        if run.steps.busy_seconds:
            limit = _limit_of(run.steps, run.script)
            console.print(Text(f"What limits it: {limit}"), soft_wrap=True)
    lists = {
        run.settled[:1].upper() + run.settled[1:]: run.changes,
        "Gathered on one device": run.gathered,
        "Compared with one device": run.checks,
    }
    # Its notes were printed when they were made, on the same stream.
    for heading, lines in lists.items():
        if lines:
            console.print(Text(f"{heading}:"))
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)


def _limit_of(steps: RunTimes, script: str) -> str:
    """Return what takes the largest part of a step beside computing, and a command."""
    busy = steps.busy_seconds
    busiest, idlest = max(busy, key=lambda d: busy[d]), min(busy, key=lambda d: busy[d])
    outside = 1.0 - min(1.0, busy[busiest] / steps.step_seconds)
    ratio = busy[idlest] / busy[busiest] if busy[busiest] else 1.0
    if outside >= LEAST_FRACTION and outside >= 1.0 - ratio:
        fraction = f"{outside:.0%}".replace("%", " %")
        return (
            f"in {fraction} of a step no device computes: input data, callbacks, copies and sums. "
            f"Next: evener doctor {script}"
        )
    if ratio <= 1.0 - LEAST_FRACTION:
        fraction = f"{ratio:.0%}".replace("%", " %")
        return (
            f"{idlest} computes for {fraction} of the time of {busiest}. "
            f"Next: evener run --plan auto {script}"
        )
    return f"the devices, which compute for most of the step. Next: evener bench {script}"


def report_at_the_end(
    session: Session,
    plan: Plan | None,
    *,
    printed: Literal["text", "json"] | None,
    file: Path | None,
    again: str,
) -> None:
    count_work(session.strategy)
    process = os.getpid()
    # The script may change the folder.
    path = None if file is None else file.absolute()

    def at_exit() -> None:
        # Forks of the script exit too. All workers have the same program and options: the report is
        # there once.
        if os.getpid() != process or not session.is_shown:
            return
        # Another plan may have been faster in a trial.
        given = plan if session.strategy.runs_by(plan) else None
        compare_with_plan(given, session.strategy, session.notes.add, again=again)
        if path is None and printed is None:
            return
        notes = [str(note) for note in session.notes.printed]
        found = report_of(session.script.given, session.strategy, notes, plan=given)
        if path is not None:
            try:
                path.write_text(f"{found.to_json()}\n", encoding="utf-8")
            except OSError as error:
                session.notes.add(f"{path} cannot be written: {error.strerror}")
        if printed is not None:
            print_report(found, as_json=printed == "json")

    # The first registered function runs last, after the output of the script.
    atexit.register(at_exit)
