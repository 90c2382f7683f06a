"""``evener launch``: a script in several worker processes, which are replaced when they die."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from evener.cli import conventions
from evener.cli.conventions import args_of_script, check_writable, option

if TYPE_CHECKING:
    from evener.workers.on_ray import Resources


THIS_MACHINES = "auto"
"""Address that stands for the cluster of this machine, or that of RAY_ADDRESS."""
_ADDRESS = re.compile(r"auto|local|\S+:\d+")


class LaunchCommand(TyperCommand):
    """A command whose option ``--ray`` may be given with an address or without one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        params = [each for each in self.params if getattr(each, "is_flag", False)]
        flags = {name for each in params for name in (*each.opts, *each.secondary_opts)}
        return super().parse_args(ctx, with_ray_address(args, flags))


def with_ray_address(words: Sequence[str], flags: Collection[str]) -> list[str]:
    found = list(words)
    position = 0
    # The first word that is neither an option nor its value is the script.
    while position < len(found) and found[position].startswith("-") and found[position] != "--":
        word = found[position]
        has_value = "=" not in word and word not in (*flags, "-h", "--help")
        following = "".join(found[position + 1 : position + 2])
        if word == "--ray" and not _ADDRESS.fullmatch(following):
            found[position] = f"--ray={THIS_MACHINES}"
            has_value = False
        position += 2 if has_value else 1
    return found


def ray_address(given: str | None, environ: Mapping[str, str]) -> str | None:
    from evener.workers import on_ray
    from evener.workers.job import split_address

    source = "--ray"
    if given == THIS_MACHINES and environ.get("RAY_ADDRESS"):
        source, given = "RAY_ADDRESS", environ["RAY_ADDRESS"]
    if given is None or given == THIS_MACHINES:
        return given
    if "://" in given:
        raise on_ray.wrong_options(
            f"{source} is {given}, an address of Ray's client.",
            "The command hosts the coordinator, which the workers have to reach.",
            "Run the command on a node of the cluster, with --ray alone; from elsewhere: "
            "ray job submit --working-dir . -- evener launch --ray ...",
        )
    split_address(given, source)
    return given


def ray_needs(
    address: str | None,
    *,
    num_workers: int | None,
    resources: Sequence[str],
    devices: Sequence[str],
    port: int | None,
    environ: Mapping[str, str],
) -> tuple[Resources, ...]:
    """Return what every worker asks Ray for; nothing if the job does not run on Ray."""
    from evener.devices.spec import spec_from
    from evener.workers import on_ray

    if address is None:
        if resources:
            what = "--ray-resources was given without --ray."
            raise on_ray.wrong_options(what, "Only Ray reads them.", "Add --ray, or leave it out.")
        return ()
    if num_workers is None:
        raise on_ray.wrong_options(
            "--ray was given without --workers.",
            "Ray places as many workers as the job has.",
            "Add --workers N.",
        )
    if port is not None:
        raise on_ray.wrong_options(
            "--port was given with --ray.", "It is for jobs of Slurm.", "Leave --port out."
        )
    num_gpus = [
        1 + max((gpu.index for gpu in spec_from(spec, environ).gpus), default=-1)
        for spec in devices or [None]
    ]
    return on_ray.resources_of(resources, num_workers, num_gpus)


_DEFAULT_RESTARTS = 3
_DEFAULT_HEARTBEAT_SECONDS = 10.0


def launch(
    context: typer.Context,
    *,
    script: conventions.ScriptArgument,
    args: conventions.ArgsArgument = None,
    as_module: conventions.AsModuleOption = False,
    workers: Annotated[
        int | None,
        option(
            "--workers N",
            "Number of workers to start. Default: one worker, of the job that TF_CONFIG or "
            "Slurm describes.",
            min=1,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        option(
            "--ray [ADDRESS]",
            "Start the workers on the Ray cluster at this address, host:port. Default: "
            "RAY_ADDRESS, else the cluster of this machine.",
        ),
    ] = None,
    ray_resources: Annotated[
        list[str] | None,
        option(
            "--ray-resources RESOURCES",
            "What every worker asks Ray for, such as CPU=4,GPU=1; or given once per worker. "
            "Default: one CPU, and the GPUs of --devices.",
        ),
    ] = None,
    devices: Annotated[
        list[str] | None,
        option(
            "--devices SPEC",
            "Devices of every worker; or given once per worker, the devices of each.",
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        option(
            "--restarts K",
            "Number of workers to replace in all, after which the job goes on without those "
            f"that die. Default: {_DEFAULT_RESTARTS}.",
            min=0,
        ),
    ] = None,
    no_replace: Annotated[
        bool, option("--no-replace", "Replace no worker; same as --restarts 0.")
    ] = False,
    logs: Annotated[
        Path | None,
        option(
            "--logs FOLDER",
            "Folder for the output of each worker. Default: a new folder for temporary files.",
        ),
    ] = None,
    heartbeat: Annotated[
        float | None,
        option(
            "--heartbeat SECONDS",
            "Silence after which a worker counts as frozen, and is killed. "
            f"Default: {_DEFAULT_HEARTBEAT_SECONDS:g}.",
            min=0.1,
        ),
    ] = None,
    grace: Annotated[
        float,
        option(
            "--grace SECONDS",
            "Time that workers have to end after SIGTERM or Ctrl-C, for example to write a "
            "checkpoint.",
            min=0,
        ),
    ] = 60.0,
    port: Annotated[
        int | None,
        option(
            "--port PORT",
            "Under Slurm: port of the first worker of each host. Default: 8888.",
            min=1,
            max=65535,
        ),
    ] = None,
    exchange: Annotated[
        str | None,
        option(
            "--exchange CARRIER",
            "What carries the sums of a step between workers: the mesh of evener, over the "
            "memory of the hosts (mesh), or the collectives of TensorFlow, by NCCL between GPUs "
            "(tensorflow). Default: EVENER_EXCHANGE, else auto: tensorflow where all workers "
            "compute on GPUs.",
        ),
    ] = None,
    plan: Annotated[
        str | None, option("--plan FILE", "As for evener run: the plan in this file.")
    ] = None,
    shares: Annotated[
        str | None, option("--shares NUMBERS", "As for evener run: shares of devices.")
    ] = None,
    no_gpu_names: conventions.NoGpuNamesOption = False,
    no_hoist: Annotated[
        bool, option("--no-hoist", "As for evener run: leave eager steps as they are.")
    ] = False,
    verify: Annotated[
        bool | None, option("--verify/--no-verify", "As for evener run: compare with one device.")
    ] = None,
    report_file: Annotated[
        Path | None, option("--report-file FILE", "As for evener run: the report of worker 0.")
    ] = None,
    checkpoint: conventions.CheckpointOption = None,
    every_steps: conventions.EveryStepsOption = None,
    record: conventions.RecordOption = None,
    log_dir: conventions.LogDirOption = None,
    live: conventions.LiveOption = None,
) -> None:
    """Run an unchanged script in several worker processes, which compute one step together.

    A worker that dies or freezes is replaced. Options of evener go before SCRIPT.
    """
    from evener.devices.spec import spec_from
    from evener.report.live import is_wanted, live_job
    from evener.run.script import read
    from evener.workers import launch as jobs
    from evener.workers.job import check_exchange, duration
    from evener.workers.on_ray import RayCluster

    found = read(script, as_module=as_module)
    check_writable(report_file)
    args = args_of_script(context, args, found)
    specs = devices or []
    num_workers = 1 if workers is None else workers
    if len(specs) not in (0, 1, num_workers):
        expected = "once" if num_workers == 1 else f"once, or {num_workers} times"
        raise typer.BadParameter(
            f"given {len(specs)} times for {num_workers} worker{'s' * (num_workers > 1)}; "
            f"give it {expected}",
            param_hint="'--devices'",
        )
    for spec in specs or [None]:
        spec_from(spec, os.environ)
    if exchange is not None:
        check_exchange("--exchange", exchange)
    ray = ray_address(ray, os.environ)
    needs = ray_needs(
        ray,
        num_workers=workers,
        resources=ray_resources or [],
        devices=specs,
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
    # Options of `evener run`.
    values = {
        "--plan": plan,
        "--shares": shares,
        "--checkpoint": conventions.checkpoint_folder(checkpoint, every_steps),
        "--every-steps": None if every_steps is None else str(every_steps),
        "--record": None if record is None else str(record.absolute()),
        "--log-dir": None if log_dir is None else str(log_dir.expanduser().absolute()),
    }
    flags = {
        "--no-gpu-names": no_gpu_names,
        "--no-hoist": no_hoist,
        "--verify": verify is True,
        "--no-verify": verify is False,
        "--no-live": live is False,
    }
    command = jobs.RunCommand(
        # The separator: none of these arguments is an option of `evener run`.
        target=(*(["-m"] if as_module else []), script, *(["--", *args] if args else [])),
        options=(
            *(word for name, text in values.items() if text is not None for word in (name, text)),
            *(name for name, is_given in flags.items() if is_given),
        ),
        devices=tuple(specs),
        report_file=report_file,
    )
    limits = jobs.Limits(
        num_restarts=0 if no_replace else _DEFAULT_RESTARTS if restarts is None else restarts,
        heartbeat_seconds=heartbeat,
        grace_seconds=grace,
    )
    with live_job(os.environ) if is_wanted(live, os.environ) else contextlib.nullcontext():
        # The live view has added its part.
        environ = dict(os.environ)
        if exchange is not None:
            environ["EVENER_EXCHANGE"] = exchange
        if workers is None:
            task = jobs.task_of(environ, port_base=port or jobs.PORT_BASE)
            folder = _make_log_folder(logs)
            code = jobs.run_task(jobs.task_settings(command, task, logs=folder, limits=limits))
            raise typer.Exit(code)
        limits = dataclasses.replace(limits, start_seconds=duration(os.environ, "start_seconds"))
        settings = jobs.job_settings(
            command, workers, environ=environ, logs=_make_log_folder(logs), limits=limits
        )
        if ray is None:
            code = jobs.run_local(settings)
        else:
            cluster = RayCluster(ray, needs, place_seconds=settings.start_seconds)
            code = jobs.run_on_ray(settings, cluster)
    raise typer.Exit(code)


def _make_log_folder(logs: Path | None) -> Path:
    if logs is None:
        return Path(tempfile.mkdtemp(prefix="evener-launch-"))
    try:
        logs.mkdir(parents=True, exist_ok=True)
        # Permissions do not tell: a file system may be read-only.
        with tempfile.TemporaryFile(dir=logs):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"{logs} cannot be written to: {error.strerror}", param_hint="'--logs'"
        ) from None
    return logs
