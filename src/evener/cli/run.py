"""``evener run``: an unchanged script or module on all devices."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from evener.cli.options import DEFAULT_LIMIT_SECONDS, DevicesOption, NoGpuNamesOption

if TYPE_CHECKING:
    from evener.devices.spec import DeviceSpec
    from evener.plan import Plan
    from evener.run.script import Script
    from evener.run.session import Layout, Session


# The other options are common in scripts too, so only these cause a warning.
_OPTIONS = ("--devices", "--plan", "--shares")
_AUTO = "auto"


class Handover(BaseException):
    """Carries a script out of typer, which handles Ctrl-C and some exceptions in its own way.

    Args:
        session: The session to run.
        args: The command line arguments of the script.
    """

    def __init__(self, session: Session, args: list[str]) -> None:
        super().__init__()
        self._session = session
        self._script_args = args

    def run(self) -> None:
        """Run the script."""
        self._session.run(self._script_args)


def run(
    *,
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT",
            show_default=False,
            help="The Python file to run, or with -m the module.",
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Arguments of the script."),
    ] = None,
    as_module: Annotated[
        bool, typer.Option("-m", help="Run a module, as python -m does: evener run -m MODULE.")
    ] = False,
    devices: DevicesOption = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="FILE|auto",
            help="Use the plan in this JSON file, instead of --devices and --shares. auto: measure "
            "the first training step and use the best plan, as evener plan finds it.",
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
            help="Print the report as one JSON object, in the last line of standard error.",
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
) -> None:
    """Run an unchanged script on all devices.

    Options of evener go before SCRIPT; everything after it is passed to the script.
    """
    from evener.cli.quiet import quiet_tensorflow
    from evener.cli.status import status
    from evener.cli.usage import check_writable
    from evener.run.script import read
    from evener.run.session import prepare

    # Check everything that does not need TensorFlow, whose import takes seconds.
    found = read(script, as_module=as_module)
    layout = _layout(devices=devices, plan=plan, shares=shares, verify=verify)
    check_writable(report_file)
    _warn_of_late_options(found, args or [])
    if plan == _AUTO:
        layout = _planned(layout, found, args or [], gpu_names=not no_gpu_names)
    with status("Starting TensorFlow"), quiet_tensorflow(os.environ):
        session = prepare(found, layout, gpu_names=not no_gpu_names, hoist=not no_hoist)
    printed = "json" if as_json else "text" if report else None
    _report_at_the_end(session, layout.plan, printed, report_file)
    raise Handover(session, args or [])


def _report_at_the_end(
    session: Session, plan: Plan | None, printed: Literal["text", "json"] | None, file: Path | None
) -> None:
    """Compare the run with its plan when the script ends, and report it if that is asked for."""
    is_predicted = plan is not None and plan.predicted is not None
    if not (is_predicted or printed or file):
        return
    # Imported now, not at exit: modules of the script may have the same names, and an import that
    # executes code at exit loses the exit status of Ctrl-C.
    from evener.report.script_run import compare_with_plan, count_work, print_report, report_of

    count_work(session.strategy)
    process = os.getpid()
    # The script may change the folder.
    path = None if file is None else file.absolute()

    def at_exit() -> None:
        # Forks of the script exit too.
        if os.getpid() != process:
            return
        compare_with_plan(plan, session.strategy, session.notes.add)
        if path is None and printed is None:
            return
        notes = [str(note) for note in session.notes.printed]
        found = report_of(session.script.given, session.strategy, notes, plan=plan)
        if path is not None:
            try:
                path.write_text(f"{found.to_json()}\n", encoding="utf-8")
            except OSError as error:
                session.notes.add(f"{path} cannot be written: {error.strerror}")
        if printed is not None:
            print_report(found, as_json=printed == "json")

    # The first registered function runs last, after the output of the script.
    atexit.register(at_exit)


def _planned(layout: Layout, read: Script, args: list[str], *, gpu_names: bool) -> Layout:
    """Return the layout with the best plan for a script, and say which one it is."""
    import dataclasses

    from evener.cli.plan_costs import measured_costs
    from evener.errors import RunError
    from evener.planner import plan_profile
    from evener.subprocess.request import StepRequest
    from evener.units import format_seconds

    script, words = read.given, read.words
    request = StepRequest(
        question="costs",
        target=script,
        kind="script" if read.module is None else "module",
        args=tuple(args),
        devices=layout.devices,
        gpu_names=gpu_names,
    )
    costs = measured_costs(request, DEFAULT_LIMIT_SECONDS)
    if costs.batch_size is None:
        raise RunError(
            "RUN-031",
            f"{script} trains on batches whose size is not known before it runs.",
            why="A plan is made for one batch size.",
            fix="Make the plan first: evener plan --batch-size N --out plan.json "
            f"{words}; then evener run --plan plan.json {words}.",
        )
    planned = plan_profile(costs.profile, costs.batch_size)
    seconds = format_seconds(planned.prediction.step_seconds)
    typer.echo(
        f"evener: planned {planned.plan.layout} on {', '.join(planned.plan.device_names)}: "
        f"{seconds} for a step of {planned.batch_size} samples; `evener plan {words}` says why",
        err=True,
    )
    return dataclasses.replace(layout, plan=planned.plan)


def _layout(
    *, devices: str | None, plan: str | None, shares: str | None, verify: bool | None
) -> Layout:
    from evener.devices.spec import spec_from
    from evener.run.session import Layout

    spec = spec_from(devices, os.environ)
    if plan == _AUTO and shares is not None:
        raise typer.BadParameter(
            "--plan auto chooses the shares; leave out --plan or --shares", param_hint="'--shares'"
        )
    if plan is None or plan == _AUTO:
        return Layout(devices=devices, shares=_read_shares(shares, spec), verify=verify)
    for option, value in (("--devices", devices), ("--shares", shares)):
        if value is not None:
            raise typer.BadParameter(
                f"a plan includes devices and shares; leave out --plan or {option}",
                param_hint=f"'{option}'",
            )
    return Layout(plan=_read_plan(Path(plan)), verify=verify)


def _read_plan(path: Path) -> Plan:
    from evener.cli.usage import wrong_usage
    from evener.plan import Plan

    if not path.exists():
        raise typer.BadParameter(f"File {str(path)!r} does not exist.", param_hint="'--plan'")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(
            f"{path} cannot be read: {error.strerror}", param_hint="'--plan'"
        ) from None
    except ValueError:
        raise typer.BadParameter(
            f"{path} is not a text file in UTF-8", param_hint="'--plan'"
        ) from None
    with wrong_usage(str(path)):
        return Plan.from_json(text)


def _read_shares(text: str | None, spec: DeviceSpec) -> str | list[float] | None:
    from evener.cli.usage import wrong_usage
    from evener.plan.shares import check_shares

    if text is None or text == "even":
        return text
    try:
        shares = [float(share) for share in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither 'even' nor a list of numbers such as 3,1",
            param_hint="'--shares'",
        ) from None
    with wrong_usage(f"--shares {text}"):
        check_shares(shares, num_expected=spec.num_devices)
    return shares


def _warn_of_late_options(script: Script, args: list[str]) -> None:
    """Warn about options of evener after the script, unless the script seems to have them too."""
    from evener.errors import warn

    names = [arg.partition("=")[0] for arg in args]
    late = next((name for name in names if name in _OPTIONS and name not in script.source), None)
    if late is None:
        return
    warn(
        "RUN-022",
        f"{late} after {script.given} is passed to the script.",
        why="Options of evener go before the script.",
        fix=f"If it is an option of evener: evener run {late} ... {script.words}",
    )
