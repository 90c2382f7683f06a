"""``evener launch``: a script in several worker processes, which are replaced when they die."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from evener.cli.options import NoGpuNamesOption, RecordOption
from evener.cli.script_args import ArgsArgument, AsModuleOption, args_of_script

_DEFAULT_RESTARTS = 3
_DEFAULT_HEARTBEAT_SECONDS = 10.0


def launch(
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
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            help="Number of workers to start. Default: one worker, of the job that TF_CONFIG or "
            "Slurm describes.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="[ADDRESS]",
            help="Start the workers on the Ray cluster at this address, host:port. Default: "
            "RAY_ADDRESS, else the cluster of this machine.",
        ),
    ] = None,
    ray_resources: Annotated[
        list[str] | None,
        typer.Option(
            "--ray-resources",
            metavar="RESOURCES",
            help="What every worker asks Ray for, such as CPU=4,GPU=1; or given once per worker. "
            "Default: one CPU, and the GPUs of --devices.",
        ),
    ] = None,
    devices: Annotated[
        list[str] | None,
        typer.Option(
            "--devices",
            metavar="SPEC",
            help="Devices of every worker; or given once per worker, the devices of each.",
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            "--restarts",
            metavar="K",
            min=0,
            help="Number of workers to replace in all, after which the job goes on without those "
            f"that die. Default: {_DEFAULT_RESTARTS}.",
        ),
    ] = None,
    no_replace: Annotated[
        bool, typer.Option("--no-replace", help="Replace no worker; same as --restarts 0.")
    ] = False,
    logs: Annotated[
        Path | None,
        typer.Option(
            "--logs",
            metavar="FOLDER",
            help="Folder for the output of each worker. Default: a new folder for temporary files.",
        ),
    ] = None,
    heartbeat: Annotated[
        float | None,
        typer.Option(
            "--heartbeat",
            metavar="SECONDS",
            min=0.1,
            help="Silence after which a worker counts as frozen, and is killed. "
            f"Default: {_DEFAULT_HEARTBEAT_SECONDS:g}.",
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            min=0,
            help="Time that workers have to end after SIGTERM or Ctrl-C, for example to write a "
            "checkpoint.",
        ),
    ] = 60.0,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=1,
            max=65535,
            help="Under Slurm: port of the first worker of each host. Default: 8888.",
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="FILE", help="As for evener run: the plan in this file."),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option("--shares", metavar="NUMBERS", help="As for evener run: shares of devices."),
    ] = None,
    no_gpu_names: NoGpuNamesOption = False,
    no_hoist: Annotated[
        bool,
        typer.Option("--no-hoist", help="As for evener run: leave eager steps as they are."),
    ] = False,
    verify: Annotated[
        bool | None,
        typer.Option("--verify/--no-verify", help="As for evener run: compare with one device."),
    ] = None,
    report_file: Annotated[
        Path | None,
        typer.Option(
            "--report-file", metavar="FILE", help="As for evener run: the report of worker 0."
        ),
    ] = None,
    record: RecordOption = None,
) -> None:
    """Run an unchanged script in several worker processes, which compute one step together.

    A worker that dies or freezes is replaced. Options of evener go before SCRIPT.
    """
    from evener.cli.launched import run_here, run_on_ray, run_task
    from evener.cli.ray_options import ray_address, ray_needs
    from evener.cli.usage import check_writable
    from evener.launch.jobs import Limits, RunCommand
    from evener.run.script import read

    found = read(script, as_module=as_module)
    check_writable(report_file)
    args = args_of_script(context, args, found)
    _check_devices(devices or [], 1 if workers is None else workers)
    ray = ray_address(ray, os.environ)
    needs = ray_needs(
        ray,
        num_workers=workers,
        resources=ray_resources or [],
        devices=devices or [],
        port=port,
        environ=os.environ,
    )
    if plan == "auto":
        raise typer.BadParameter(
            "every worker would make a plan of its own; make the plan first: "
            f"evener plan --out plan.json {found.words}",
            param_hint="'--plan'",
        )
    if workers is None and (restarts is not None or no_replace):
        raise typer.BadParameter(
            "without --workers there is one worker, which the scheduler of the job replaces",
            param_hint="'--restarts' / '--no-replace'",
        )
    command = RunCommand(
        # The separator: none of these arguments is an option of `evener run`.
        target=(*(["-m"] if as_module else []), script, *(["--", *args] if args else [])),
        options=_passed_on(
            {
                "--plan": plan,
                "--shares": shares,
                "--record": None if record is None else str(record.absolute()),
            },
            {
                "--no-gpu-names": no_gpu_names,
                "--no-hoist": no_hoist,
                "--verify": verify is True,
                "--no-verify": verify is False,
            },
        ),
        devices=tuple(devices or ()),
        report_file=report_file,
    )
    limits = Limits(
        num_restarts=0 if no_replace else _DEFAULT_RESTARTS if restarts is None else restarts,
        heartbeat_seconds=heartbeat,
        grace_seconds=grace,
    )
    if workers is None:
        raise typer.Exit(run_task(command, logs, limits, port))
    if ray is None:
        raise typer.Exit(run_here(command, workers, logs, limits))
    raise typer.Exit(run_on_ray(command, needs, logs, limits, ray))


def _passed_on(values: Mapping[str, str | None], flags: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the options that are passed on to ``evener run``.

    Args:
        values: Options with a value; None for those that were not given.
        flags: Options without one, and whether they were given.
    """
    words: list[str] = []
    for option, value in values.items():
        if value is not None:
            words += [option, value]
    return (*words, *(option for option, is_given in flags.items() if is_given))


def _check_devices(devices: Sequence[str], num_workers: int) -> None:
    from evener.devices.spec import spec_from

    if len(devices) not in (0, 1, num_workers):
        expected = "once" if num_workers == 1 else f"once, or {num_workers} times"
        raise typer.BadParameter(
            f"given {len(devices)} times for {num_workers} worker{'s' * (num_workers > 1)}; "
            f"give it {expected}",
            param_hint="'--devices'",
        )
    for spec in devices or [None]:
        spec_from(spec, os.environ)
