"""``evener run``: an unchanged script or module on all devices."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evener.cli.options import (
    DEFAULT_LIMIT_SECONDS,
    DevicesOption,
    LiveOption,
    NoGpuNamesOption,
    RecordOption,
)
from evener.cli.script_args import ArgsArgument, AsModuleOption, args_of_script

if TYPE_CHECKING:
    from evener.recording.record import Recording
    from evener.run.script import Script
    from evener.run.session import Layout, Session


class Handover(BaseException):
    """Carries a script out of typer, which handles Ctrl-C and some exceptions in its own way.

    Args:
        session: The session to run.
        args: The command line arguments of the script.
        recording: Record of the run; None to record nothing.
        live: Whether a live view is shown.
    """

    def __init__(
        self,
        session: Session,
        args: list[str],
        recording: Recording | None = None,
        *,
        live: bool = False,
    ) -> None:
        super().__init__()
        self._session = session
        self._script_args = args
        self._recording = recording
        self._live = live

    def run(self) -> None:
        """Run the script."""
        with contextlib.ExitStack() as stack:
            if self._recording is not None:
                stack.enter_context(self._recording)
            if self._live:
                from evener.report.live.run import live_run

                stack.enter_context(live_run(self._session.strategy, os.environ))
            self._session.run(self._script_args)


def run(
    context: typer.Context,
    *,
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT",
            show_default=False,
            help="The Python file to run, or with -m the module.",
        ),
    ],
    args: ArgsArgument = None,
    as_module: AsModuleOption = False,
    devices: DevicesOption = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="FILE|auto",
            help="Use the plan in this JSON file, instead of --devices and --shares. auto: measure "
            "the first training step, begin with the best plan, try it and the two simplest ones "
            "in steps of the run, and go on with the fastest.",
        ),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            "--shares",
            metavar="NUMBERS",
            help="Relative share of each batch for each device, for example 3,1; or even for equal "
            "shares. Default: measured while training.",
        ),
    ] = None,
    no_gpu_names: NoGpuNamesOption = False,
    no_hoist: Annotated[
        bool,
        typer.Option(
            "--no-hoist",
            help="Run training steps that are not decorated with tf.function as they are, on one "
            "device.",
        ),
    ] = False,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="--verify: also compute the first run of each step on one device, and print the "
            "difference. --no-verify: compare nothing. Default: compare a few samples, and warn if "
            "they differ.",
        ),
    ] = None,
    report: Annotated[
        bool,
        typer.Option("--report", help="Print a report to standard error when the script ends."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the report as one JSON object, in the last line of standard output.",
        ),
    ] = False,
    report_file: Annotated[
        Path | None,
        typer.Option(
            "--report-file",
            metavar="FILE",
            help="Write the report as JSON to a file, for evener plan --from-run.",
        ),
    ] = None,
    record: RecordOption = None,
    live: LiveOption = None,
) -> None:
    """Run an unchanged script on all devices.

    Options of evener go before SCRIPT.
    """
    from evener.cli import run_layout
    from evener.cli.quiet import quiet_tensorflow
    from evener.cli.status import status
    from evener.cli.usage import check_writable
    from evener.collector import paused_collector
    from evener.report.live.run import is_wanted
    from evener.run.script import read
    from evener.run.session import prepare

    # Check everything that does not need TensorFlow, whose import takes seconds.
    found = read(script, as_module=as_module)
    args = args_of_script(context, args, found)
    layout = run_layout.read_layout(devices=devices, plan=plan, shares=shares, verify=verify)
    check_writable(report_file)
    if plan == run_layout.AUTO:
        layout = _planned(layout, found, args, gpu_names=not no_gpu_names)
    with status("Starting TensorFlow"), quiet_tensorflow(os.environ), paused_collector():
        session = prepare(found, layout, gpu_names=not no_gpu_names, hoist=not no_hoist)
    printed = "json" if as_json else "text" if report else None
    is_predicted = layout.plan is not None and layout.plan.predicted is not None
    if is_predicted or printed or report_file:
        from evener.report.end_of_run import report_at_the_end

        report_at_the_end(session, layout.plan, printed=printed, file=report_file)
    recording = None
    if record is not None:
        from evener.doctor.under_run import findings_under_run
        from evener.run.recorded import record_session

        with status(f"Reading {found.given}"):
            recording = record_session(session, record, findings_under_run)
    raise Handover(session, args, recording, live=is_wanted(live, os.environ))


def _planned(layout: Layout, script: Script, args: list[str], *, gpu_names: bool) -> Layout:
    """Return the layout with the best plan for a script, and print which plan it is."""
    import dataclasses

    from evener.cli.status import status
    from evener.planner.simplest import plans_to_try
    from evener.subprocess.script_plan import plan_script
    from evener.units import format_seconds

    with status(f"Measuring the first training step of {script.given}"):
        planned = plan_script(
            script,
            args,
            devices=layout.devices,
            gpu_names=gpu_names,
            time_limit=DEFAULT_LIMIT_SECONDS,
        )
    seconds = format_seconds(planned.prediction.step_seconds)
    typer.echo(
        f"evener: planned {planned.plan.layout} on {', '.join(planned.plan.device_names)}: "
        f"{seconds} for a step of {planned.batch_size} samples; `evener plan {script.words}` "
        "says why",
        err=True,
    )
    return dataclasses.replace(layout, plan=planned.plan, tried=plans_to_try(planned))
