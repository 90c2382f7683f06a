"""``evener run`` and ``evener bench``: an unchanged script on all devices, and timed on layouts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evener.cli import conventions
from evener.cli.conventions import args_of_script, argument, check_writable, option, status
from evener.errors import EvenerError, RunError

if TYPE_CHECKING:
    from evener.plan import Plan
    from evener.recording.record import Recording
    from evener.run.bench import BenchRow, TimedRun
    from evener.run.session import RunLayout, Session

AUTO = "auto"
"""Value of ``--plan`` for the best plan, which is found before the run."""


class Handover(BaseException):
    """Carries a script out of typer, which handles Ctrl-C and some exceptions in its own way."""

    def __init__(
        self,
        session: Session,
        args: list[str],
        recording: Recording | None,
        *,
        is_live: bool,
        log_dir: Path | None,
    ) -> None:
        super().__init__()
        self._session = session
        self._script_args = args
        self._recording = recording
        self._is_live = is_live
        self._log_dir = log_dir

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            if self._recording is not None:
                stack.enter_context(self._recording)
            if self._log_dir is not None:
                from evener.recording.record import logging_epochs

                stack.enter_context(logging_epochs(self._session.strategy, self._log_dir))
            if self._is_live:
                from evener.report.progress import live_run

                stack.enter_context(live_run(self._session.strategy, os.environ))
            self._session.run(self._script_args)


def run(
    context: typer.Context,
    *,
    script: conventions.ScriptArgument,
    args: conventions.ArgsArgument = None,
    as_module: conventions.AsModuleOption = False,
    devices: conventions.DevicesOption = None,
    plan: Annotated[
        str | None,
        option(
            "--plan FILE|auto",
            "Use the plan in this JSON file, instead of --devices and --shares. auto: measure "
            "the first training step, begin with the best plan, try it and the two simplest ones "
            "in steps of the run, and go on with the fastest.",
        ),
    ] = None,
    shares: Annotated[
        str | None,
        option(
            "--shares NUMBERS",
            "Relative share of each batch for each device, for example 3,1; or even for equal "
            "shares. Default: measured while training.",
        ),
    ] = None,
    no_gpu_names: conventions.NoGpuNamesOption = False,
    no_hoist: Annotated[
        bool,
        option(
            "--no-hoist",
            "Run training steps that are not decorated with tf.function as they are, on one "
            "device.",
        ),
    ] = False,
    verify: Annotated[
        bool | None,
        option(
            "--verify/--no-verify",
            "--verify: also compute the first run of each step on one device, and print the "
            "difference. --no-verify: compare nothing. Default: compare a few samples, and warn if "
            "they differ.",
        ),
    ] = None,
    report: Annotated[
        bool, option("--report", "Print a report to standard error when the script ends.")
    ] = False,
    as_json: Annotated[
        bool,
        option(
            "--json", "Print the report as one JSON object, in the last line of standard output."
        ),
    ] = False,
    report_file: Annotated[
        Path | None,
        option(
            "--report-file FILE", "Write the report as JSON to a file, for evener plan --from-run."
        ),
    ] = None,
    checkpoint: conventions.CheckpointOption = None,
    every_steps: conventions.EveryStepsOption = None,
    record: conventions.RecordOption = None,
    log_dir: conventions.LogDirOption = None,
    live: conventions.LiveOption = None,
) -> None:
    """Run an unchanged script on all devices.

    Options of evener go before SCRIPT.
    """
    from evener.base.libraries import paused_collector
    from evener.report.live import is_wanted
    from evener.run.script import read
    from evener.run.session import prepare

    # Check everything that does not need TensorFlow, whose import takes seconds.
    found = read(script, as_module=as_module)
    args = args_of_script(context, args, found)
    folder = conventions.checkpoint_folder(checkpoint, every_steps)
    layout = read_layout(devices=devices, plan=plan, shares=shares, verify=verify)
    check_writable(report_file)
    if log_dir is not None:
        # A script may change its own folder.
        log_dir = log_dir.expanduser().absolute()
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(
                f"{log_dir} cannot be made: {error.strerror}", param_hint="'--log-dir'"
            ) from None
    if plan == AUTO:
        from evener.base.text import format_seconds
        from evener.planner.planning import plans_to_try
        from evener.run.first_step import plan_script

        with status(f"Measuring the first training step of {found.given}"):
            planned = plan_script(
                found,
                args,
                devices=layout.devices,
                gpu_names=not no_gpu_names,
                time_limit=conventions.DEFAULT_LIMIT_SECONDS,
            )
        seconds = format_seconds(planned.prediction.step_seconds)
        typer.echo(
            f"evener: planned {planned.plan.layout} on {', '.join(planned.plan.device_names)}: "
            f"{seconds} for a step of {planned.batch_size} samples; `evener plan {found.words}` "
            "says why",
            err=True,
        )
        layout = dataclasses.replace(layout, plan=planned.plan, tried=plans_to_try(planned))
    layout = dataclasses.replace(layout, checkpoint=folder, every_steps=every_steps)
    with (
        status("Starting TensorFlow"),
        conventions.quiet_tensorflow(os.environ),
        paused_collector(),
    ):
        session = prepare(found, layout, gpu_names=not no_gpu_names, hoist=not no_hoist)
    printed = "json" if as_json else "text" if report else None
    is_predicted = layout.plan is not None and layout.plan.predicted is not None
    if is_predicted or printed or report_file:
        from evener.report.script_run import report_at_the_end

        words = " ".join([found.words, *map(shlex.quote, args)])
        again = ""
        if layout.plan is not None:
            again = commands_to_plan_again(layout.plan, plan, devices, words)
        report_at_the_end(session, layout.plan, printed=printed, file=report_file, again=again)
    recording = None
    if record is not None:
        from evener.doctor.diagnosis import findings_under_run

        with status(f"Reading {found.given}"):
            recording = session.record(record, findings_under_run)
    is_live = is_wanted(live, os.environ)
    raise Handover(session, args, recording, is_live=is_live, log_dir=log_dir)


def commands_to_plan_again(plan: Plan, given: str | None, devices: str | None, words: str) -> str:
    names = plan.device_names
    workers = {name.partition("/")[0] for name in names if name.startswith("worker:")}
    run = f"launch --workers {len(workers)}" if workers else "run"
    layout = f"--plan {shlex.quote(given)} " if given is not None else ""
    on_cpu = all(name.startswith("cpu:") for name in names)
    spec = devices or (f"cpu:{len(names)}" if on_cpu else ",".join(names))
    own = f"--devices {shlex.quote(spec)} "
    layout = f"{own}{layout}" if devices else layout
    return (
        f"evener {run} --report-file times.json {layout}{words}; then "
        f"evener plan --from-run times.json {'' if workers else own}{words}"
    )


def read_layout(
    *, devices: str | None, plan: str | None, shares: str | None, verify: bool | None
) -> RunLayout:
    from evener.devices.spec import spec_from
    from evener.plan import Plan
    from evener.run.session import RunLayout

    spec = spec_from(devices, os.environ)
    if plan == AUTO and shares is not None:
        raise typer.BadParameter(
            "--plan auto chooses the shares; leave out --plan or --shares", param_hint="'--shares'"
        )
    if plan is None or plan == AUTO:
        values = _read_shares(shares, num_devices=spec.num_devices)
        return RunLayout(devices=devices, shares=values, verify=verify)
    for name, value in (("--devices", devices), ("--shares", shares)):
        if value is not None:
            raise typer.BadParameter(
                f"a plan includes devices and shares; leave out --plan or {name}",
                param_hint=f"'{name}'",
            )
    path = Path(plan)
    if not path.exists():
        raise typer.BadParameter(f"File {plan!r} does not exist.", param_hint="'--plan'")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = "is not a text file in UTF-8"
        if isinstance(error, OSError):
            reason = f"cannot be read: {error.strerror}"
        raise typer.BadParameter(f"{path} {reason}", param_hint="'--plan'") from None
    with conventions.wrong_usage(str(path)):
        return RunLayout(plan=Plan.from_json(text), verify=verify)


def _read_shares(text: str | None, *, num_devices: int | None) -> str | list[float] | None:
    from evener.plan.plan import check_shares
    from evener.workers.job import job_from_environment

    if text is None or text == "even":
        return text
    try:
        shares = [float(share) for share in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither 'even' nor a list of numbers such as 3,1", param_hint="'--shares'"
        ) from None
    job = job_from_environment(os.environ)
    with conventions.wrong_usage(f"--shares {text}"):
        # The devices of other workers have shares too, and are not known yet.
        check_shares(shares, num_expected=None if job and job.count > 1 else num_devices)
    return shares


def bench(
    context: typer.Context,
    *,
    script: Annotated[
        str,
        argument("SCRIPT", "A Python file that trains, or with -m a module.", show_default=False),
    ],
    args: conventions.ArgsArgument = None,
    as_module: conventions.AsModuleOption = False,
    devices: conventions.DevicesOption = None,
    rounds: Annotated[int, option("--rounds N", "Number of runs of each layout.", min=1)] = 3,
    steps: Annotated[
        int, option("--steps N", "Number of timed steps of a run, after 10 others.", min=5, max=200)
    ] = 40,
    xla: Annotated[
        bool, option("--xla", "Measure each layout with XLA and without: jit_compile.")
    ] = False,
    time_limit: Annotated[
        float, option("--time-limit SECONDS", "Time limit of a run.", min=1)
    ] = conventions.DEFAULT_LIMIT_SECONDS,
    as_json: Annotated[bool, option("--json", "Print the result as one JSON object.")] = False,
) -> None:
    """Time the steps of a script on one device, and under several layouts of all devices.

    Each layout runs in a process of its own, in turns, up to its last timed step. Prints a table,
    what limits the fastest layout, and the command to use.
    """
    from evener.base.libraries import paused_collector
    from evener.base.terminal import standard_output
    from evener.devices import inventory
    from evener.run import bench as benchmark
    from evener.run.first_step import plan_script
    from evener.run.script import read

    found = read(script, as_module=as_module)
    args = args_of_script(context, args, found)
    with conventions.quiet_tensorflow(os.environ), paused_collector():
        names = [device.name for device in inventory(devices).used]
    if len(names) < 2:
        raise RunError(
            "RUN-108",
            f"evener bench compares layouts of several devices, and there is {len(names)}.",
            why=f"The devices are {', '.join(names) or 'none'}.",
            fix="Give two or more: --devices gpu:0,gpu:1, or --devices cpu:2 to try it.",
        )
    typer.echo("evener: measuring the layers for a plan", err=True)
    planned: Plan | str
    try:
        planned = plan_script(
            found, args, devices=devices, gpu_names=True, time_limit=time_limit
        ).plan
    except EvenerError as error:
        planned = f"{error.code}: {error.what}"
    request = benchmark.TimedRun(
        target=script, is_module=as_module, args=tuple(args), devices=devices, num_steps=steps
    )
    rows = benchmark.measure(
        benchmark.contenders(
            names,
            spec=devices,
            words=" ".join([found.words, *map(shlex.quote, args)]),
            planned=planned,
            with_xla=xla,
        ),
        request,
        num_rounds=rounds,
        limit_seconds=time_limit,
        tell=lambda text: typer.echo(f"evener: {text}", err=True),
    )
    if not any(row.rounds for row in rows):
        problems = "; ".join(f"{row.contender.name}: {row.problem}" for row in rows)
        raise RunError(
            "RUN-109",
            "No layout could be measured.",
            why=f"{problems}.",
            fix=f"Run the script alone: evener run {found.words}. It needs 15 training steps or "
            "more.",
        )
    limit, record = _record_fastest(rows, request, time_limit)
    result = benchmark.BenchResult(rows=tuple(rows), limit=limit, record=record)
    if as_json:
        typer.echo(result.to_json())
    else:
        benchmark.print_result(result, standard_output())


def _record_fastest(rows: list[BenchRow], request: TimedRun, time_limit: float) -> tuple[str, str]:
    from evener.recording.reading import limit_of, read_records, summarise
    from evener.run.bench import fastest, run_once

    best = fastest([row for row in rows[1:] if row.contender.kind == "evener"])
    if best is None:
        return "", ""
    folder = str(Path(tempfile.mkdtemp(prefix="evener-bench-")) / "record")
    typer.echo(f"evener: recording {best.contender.name}", err=True)
    times = run_once(best.contender, request, limit_seconds=time_limit, record=folder)
    try:
        (record,) = read_records(Path(folder))
    except RunError as error:
        return f"Not known: {times.problem or error.what}", ""
    return limit_of(summarise(record)), folder
