"""The report of `evener run --report`.

Devices, shares and notes, as a table or as JSON, when the run ends.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener._tf_private.random_numbers import is_deterministic
from evener.base.terminal import standard_error
from evener.base.text import format_bytes, format_seconds
from evener.devices.names import tf_device, without_worker
from evener.errors import house_form
from evener.plan import Plan
from evener.planner.run_times import RunTimes, deviation, run_times
from evener.profiler.profile import hardware_of
from evener.recording.measured import count_work, gpu_memory, shares_of_devices
from evener.report.progress import DeviceWork, Owned, StrategyDevices
from evener.run.session import Session
from evener.strategy import Strategy

_UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """The report of a run, made when the script has ended."""

    script: str  # The path on the command line
    # The share of each device at the end, the samples it has trained on, its busy seconds, and the
    # variables it owns
    devices: tuple[DeviceWork, ...]
    changes: tuple[str, ...]  # Every change of shares, as a line
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
    plan: Plan | None, strategy: Strategy, report: Callable[[str], object]
) -> None:
    """Report steps that take longer or shorter than the plan predicts."""
    if plan is None or plan.predicted is None:
        return
    found = deviation(plan.predicted, step_times(strategy))
    if found is not None:
        fix = (
            "Plan again with the times of this run: evener run --plan PLAN --report-file FILE "
            "SCRIPT, and then evener plan --from-run FILE SCRIPT."
        )
        # Continuation lines of notes are indented.
        report(house_form("PROF-055", found.what, found.why, fix).replace("\n", "\n  "))


def report_of(
    script: str, strategy: Strategy, notes: Sequence[str], *, plan: Plan | None = None
) -> ScriptRun:
    shares, owned = shares_of_devices(strategy), StrategyDevices(strategy).owned()
    controller = strategy.share_controller
    samples: dict[str, int] = {}
    seconds: dict[str, float] = {}
    # Eager steps, and operations that have to be deterministic, are not timed.
    if controller.counts and any(controller.total_samples()):
        seconds = controller.busy_seconds()
        for replica, count in zip(strategy.plan.replicas, controller.total_samples(), strict=True):
            for device in dict.fromkeys(stage.device for stage in replica.stages):
                samples[device] = samples.get(device, 0) + count
    is_counted = controller.counts and not is_deterministic()
    was_divided = bool(samples) or len(shares) < 2 or not is_counted

    def is_own(name: str) -> bool:
        return strategy.name_in_plan(without_worker(name)) == name

    devices = tuple(
        DeviceWork(
            device=name,
            share=shares.get(name) if was_divided else None,
            num_samples=samples.get(name),
            # Those of other workers are not known here.
            busy_seconds=seconds.get(tf_device(name)) if is_own(name) else None,
            owned=owned.get(name, Owned()),
            memory=gpu_memory(name),
        )
        for name in dict.fromkeys([*shares, *owned])
    )
    return ScriptRun(
        script=script,
        devices=devices,
        changes=tuple(map(str, strategy.share_controller.events)),
        gathered=tuple(dict.fromkeys(map(str, strategy.report().gathered))),
        notes=tuple(notes),
        plan=plan or strategy.plan,
        steps=step_times(strategy),
        checks=tuple(map(str, strategy.spot_checks)),
    )


def print_report(run: ScriptRun, *, as_json: bool, console: Console | None = None) -> None:
    """Print a report: as text on standard error, as JSON in the last line of standard output."""
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
    lists = {
        "Changes of shares": run.changes,
        "Gathered on one device": run.gathered,
        "Compared with one device": run.checks,
    }
    # Its notes were printed when they were made, on the same stream.
    for heading, lines in lists.items():
        if lines:
            console.print(Text(f"{heading}:"))
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)


def report_at_the_end(
    session: Session,
    plan: Plan | None,
    *,
    printed: Literal["text", "json"] | None,
    file: Path | None,
) -> None:
    """Count the work of a run from now on, and report it when the process ends."""
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
        compare_with_plan(given, session.strategy, session.notes.add)
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
