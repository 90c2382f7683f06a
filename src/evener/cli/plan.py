"""``evener plan``: what should run where, what it costs, and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from evener.cli.options import DevicesOption, NoGpuNamesOption

if TYPE_CHECKING:
    from evener.profile import CostProfile

_DEFAULT_LIMIT_SECONDS = 600.0


def plan(
    *,
    script: Annotated[
        str | None,
        typer.Argument(metavar="[SCRIPT]", show_default=False, help="A Python file that trains."),
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Arguments of the script."),
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size",
            metavar="N|max|auto",
            help="Samples of the global batch. max: the most that fit at once. auto: the fewest "
            "with nearly the most samples per second. Default: the batch of the script.",
        ),
    ] = None,
    devices: DevicesOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="A published model, such as bert-large, instead of a script; with --cluster.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="FILE|NAME",
            help="Plan for the devices that a YAML file describes, or for a cluster that comes "
            "with evener, such as a100-8; with --model.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Use the measurements in this file instead of measuring a script.",
        ),
    ] = None,
    save_profile: Annotated[
        Path | None,
        typer.Option("--save-profile", metavar="FILE", help="Write the measurements to a file."),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="PLAN",
            exists=True,
            dir_okay=False,
            help="Cost the plan in this JSON file instead of searching for one.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the plan as JSON, for evener run."),
    ] = None,
    no_gpu_names: NoGpuNamesOption = False,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            min=1,
            help="Stop if the script has not been measured by then.",
        ),
    ] = _DEFAULT_LIMIT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as one JSON object.")
    ] = False,
) -> None:
    """Choose what runs where: measured layer by layer, the model not run.

    Prints the plan, what it costs, why others lost, and what would help.
    """
    from evener.cli.usage import wrong_usage

    _check_sources(script=script, model=model, cluster=cluster, profile=profile)
    wanted = _read_batch_size(batch_size)
    for file in (save_profile, out):
        if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
            raise typer.BadParameter(f"{file} cannot be written")
    if model is not None:
        assert cluster is not None
        with wrong_usage("--model and --cluster"):
            costs, own_size = _described(model, cluster), None
    elif profile is not None:
        from evener.profile.serialise import read_profile

        with wrong_usage("--profile"):
            costs, own_size = read_profile(profile), None
    else:
        assert script is not None
        most = wanted if isinstance(wanted, int) else None
        costs, own_size = _measured(script, args, devices, most, no_gpu_names, time_limit)
    if save_profile is not None:
        from evener.profile.serialise import profile_to_json

        save_profile.write_text(profile_to_json(costs), encoding="utf-8")
    _plan_and_print(costs, wanted or own_size, check=check, out=out, as_json=as_json)


def _check_sources(
    *, script: str | None, model: str | None, cluster: str | None, profile: Path | None
) -> None:
    """Refuse less, and more, than one source of costs."""
    given = [name for name, value in (("a script", script), ("--model", model)) if value]
    given += ["--profile"] if profile is not None else []
    if len(given) != 1:
        found = " and ".join(given) or "nothing"
        raise typer.BadParameter(
            f"give one of a script, --profile, or --model with --cluster; {found} was given"
        )
    if (model is None) != (cluster is None):
        raise typer.BadParameter("--model and --cluster belong together")


def _read_batch_size(text: str | None) -> int | Literal["max", "auto"] | None:
    if text is None or text == "max" or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(
            f"{text!r} is neither a number of samples above 0, nor max, nor auto",
            param_hint="'--batch-size'",
        )
    return int(text)


def _described(model: str, cluster: str) -> CostProfile:
    from evener.simulate import cluster_named, datasheet_profile, model_named, read_cluster

    is_file = cluster.endswith((".yaml", ".yml")) or Path(cluster).exists()
    described = read_cluster(Path(cluster)) if is_file else cluster_named(cluster)
    return datasheet_profile(model_named(model), described)


def _measured(
    script: str,
    args: list[str] | None,
    devices: str | None,
    batch_size: int | None,
    no_gpu_names: bool,
    time_limit: float,
) -> tuple[CostProfile, int | None]:
    from evener.cli.status import status
    from evener.devices.spec import spec_from
    from evener.errors import warn
    from evener.launch.plan_subprocess import measure_in_subprocess
    from evener.launch.script import read_script
    from evener.launch.step_costs import CostRequest
    from evener.versions import check_installed

    # Before the subprocess imports TensorFlow, which takes seconds.
    read_script(script)
    spec = spec_from(devices, os.environ)
    request = CostRequest(
        script=script,
        args=tuple(args or ()),
        devices=None if spec.source == "default" else str(spec),
        batch_size=batch_size,
        gpu_names=not no_gpu_names,
        answer="",
    )
    check_installed()
    with status(f"Measuring the first training step of {script}"):
        found = measure_in_subprocess(request, spec, limit_seconds=time_limit)
    if found.not_measured:
        warn(
            "PROF-020",
            f"The times of {len(found.not_measured)} layers are estimated.",
            why="; ".join(found.not_measured[:3]),
            fix="Compare the first steps with the prediction.",
        )
    return found.profile, found.batch_size


def _plan_and_print(
    costs: CostProfile,
    batch_size: int | Literal["max", "auto"] | None,
    *,
    check: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    from evener.plan import Plan
    from evener.plan.search import check_plan, make_plan

    if batch_size is None:
        raise typer.BadParameter("say it: N, max or auto", param_hint="'--batch-size'")
    if check is not None:
        from evener.cli.usage import wrong_usage

        with wrong_usage(str(check)):
            given = Plan.from_json(check.read_text(encoding="utf-8"))
            if isinstance(batch_size, str):
                raise typer.BadParameter("--check needs a number", param_hint="'--batch-size'")
            planned = check_plan(given, costs, batch_size)
    else:
        planned = make_plan(costs, batch_size)
    if out is not None:
        out.write_text(planned.plan.to_json(), encoding="utf-8")
    if as_json:
        print(planned.plan.to_json())
    else:
        from evener.report.planned import print_planned

        print_planned(planned)
    raise typer.Exit(1 if planned.problem else 0)
