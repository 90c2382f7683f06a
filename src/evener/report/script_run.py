"""The report of `evener run --report`: devices, shares and notes, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.text import Text

from evener._tf_private.random_numbers import is_deterministic
from evener.devices.names import tf_device, without_worker
from evener.errors import house_form
from evener.feedback.deviation import deviation
from evener.feedback.run_times import RunTimes, run_times
from evener.plan import Plan
from evener.profiler.profile import hardware_of
from evener.recording.measured import shares_of_devices
from evener.recording.memory import gpu_memory
from evener.report.display import device_table
from evener.report.work import DeviceWork, Owned, StrategyDevices
from evener.strategy import Strategy
from evener.terminal import standard_error
from evener.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """The report of a run, made when the script has ended.

    Args:
        script: The path on the command line.
        devices: The share of each device at the end, the samples it has trained on, its busy
            seconds, and the variables it owns.
        changes: Every change of shares, as a line.
        gathered: The operations that were computed once for the global batch, each as a line.
        notes: The notes about the script, such as what was replaced.
        plan: The plan of the run, with what it predicted.
        steps: The times of the last steps; None if they were not timed.
        checks: Results of the comparisons of a few samples with one device, each as a line.
    """

    script: str
    devices: tuple[DeviceWork, ...]
    changes: tuple[str, ...]
    gathered: tuple[str, ...]
    notes: tuple[str, ...]
    plan: Plan
    steps: RunTimes | None = None
    checks: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the report as one line of JSON; `evener.feedback.run_times.read_run` reads it."""
        fields = {**asdict(self), "plan": json.loads(self.plan.to_json())}
        return json.dumps(fields, ensure_ascii=False)


def step_times(strategy: Strategy) -> RunTimes | None:
    """Return the times of the last counted steps; None if none were timed."""
    names = list(shares_of_devices(strategy))
    hardware = {name: hardware_of(name) for name in names}
    records = strategy.share_controller.step_records()
    # A step that is not partitioned is timed as a whole, updates included.
    return run_times(records, names, hardware, with_updates=not strategy.is_partitioned)


def compare_with_plan(
    plan: Plan | None, strategy: Strategy, report: Callable[[str], object]
) -> None:
    """Report steps that take longer or shorter than the plan predicts.

    Args:
        plan: Plan of the run; None if it had none.
        strategy: The strategy of the run, which counted its steps.
        report: Function that is called with a message in the house form (PROF-055).
    """
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
    """Return the report of a run.

    Args:
        script: The path on the command line.
        strategy: The strategy of the run.
        notes: The notes about the script.
        plan: Plan that was given, with its prediction; None for that of the strategy.
    """
    shares, owned = shares_of_devices(strategy), StrategyDevices(strategy).owned()
    samples, seconds = _counted_work(strategy)

    # Operations that have to be deterministic are not counted.
    is_counted = strategy.share_controller.counts and not is_deterministic()
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


def _counted_work(strategy: Strategy) -> tuple[dict[str, int], dict[str, float]]:
    """Return the samples of each device, and its busy seconds by TensorFlow's name, if counted."""
    controller = strategy.share_controller
    # Eager steps, and operations that have to be deterministic, are not timed.
    if not controller.counts or not any(controller.total_samples()):
        return {}, {}
    samples: dict[str, int] = {}
    for replica, count in zip(strategy.plan.replicas, controller.total_samples(), strict=True):
        for device in dict.fromkeys(stage.device for stage in replica.stages):
            samples[device] = samples.get(device, 0) + count
    return samples, controller.busy_seconds()


def print_report(run: ScriptRun, *, as_json: bool, console: Console | None = None) -> None:
    """Print a report: as text on standard error, as JSON in the last line of standard output.

    Args:
        run: The report.
        as_json: Whether to print one line of JSON.
        console: The console; None for standard error.
    """
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
    _print_list(console, "Changes of shares", run.changes)
    _print_list(console, "Gathered on one device", run.gathered)
    _print_list(console, "Compared with one device", run.checks)
    # Its notes were printed when they were made, on the same stream.


def _print_list(console: Console, heading: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(Text(f"{heading}:"))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)
