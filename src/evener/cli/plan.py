"""``evener plan``: the best plan for a model and its devices, its cost, and the reasons."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from evener.cli.options import (
    DEFAULT_LIMIT_SECONDS,
    DevicesOption,
    NoGpuNamesOption,
    TimeLimitOption,
)

if TYPE_CHECKING:
    from evener.feedback.run_times import MeasuredRun
    from evener.profile import CostProfile
    from evener.subprocess.costs import StepCosts


def plan(
    *,
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCRIPT]",
            show_default=False,
            help="A Python file that trains, or with -m a module.",
        ),
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Arguments of the script."),
    ] = None,
    as_module: Annotated[
        bool,
        typer.Option("-m", help="Measure a module, run as python -m does."),
    ] = False,
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size",
            metavar="N|max|auto",
            help="Samples of the global batch. max: the largest batch that fits into memory. auto: "
            "the smallest batch with nearly the highest throughput. Default: the batch of the "
            "script.",
        ),
    ] = None,
    devices: DevicesOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Plan for a published model, such as bert-large, instead of a script. Needs "
            "--cluster.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="FILE|NAME",
            help="Plan for the devices of a cluster: a YAML file that describes it, or a cluster "
            "that evener knows, such as a100-8. Needs --model.",
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
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from-run",
            metavar="FILE",
            help="Scale the predicted times to a measured run: a file written by evener run "
            "--report-file.",
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
            help="Predict the cost of the plan in this JSON file, instead of searching for a plan.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the plan as JSON, for evener run."),
    ] = None,
    remeasure: Annotated[
        bool,
        typer.Option(
            "--remeasure",
            help="Measure all layers again, even if measurements for these devices are stored.",
        ),
    ] = False,
    no_gpu_names: NoGpuNamesOption = False,
    time_limit: TimeLimitOption = DEFAULT_LIMIT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as one JSON object.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of plans and exit.")
    ] = False,
) -> None:
    """Measure the layers of a model, and find the best plan for the devices.

    The model is not trained. Prints the plan, its predicted time and memory, why other plans were
    rejected, and what would make training faster.
    """
    from evener.cli.usage import check_writable, wrong_usage

    if schema:
        from evener.plan import plan_schema_text

        print(plan_schema_text(), end="")
        raise typer.Exit
    if as_module and script is None:
        raise typer.BadParameter("-m needs the name of a module", param_hint="'-m'")
    _check_sources(script=script, model=model, cluster=cluster, profile=profile)
    wanted = _read_batch_size(batch_size)
    for file in (save_profile, out):
        check_writable(file)
    run = None if from_run is None else _read_run(from_run, model)
    costs = _known(model, cluster, profile)
    if costs is None:
        assert script is not None
        from evener.cli.status import status
        from evener.subprocess.costs import measured_profile

        with status(f"Measuring the first training step of {script}"):
            costs = measured_profile(
                script,
                args or (),
                as_module=as_module,
                devices=devices,
                batch_size=wanted if isinstance(wanted, int) else run and run.times.batch_size,
                gpu_names=not no_gpu_names,
                time_limit=time_limit,
                remeasure=remeasure,
            )
    if run is not None:
        with wrong_usage("--from-run"):
            costs, wanted = _calibrated(costs, run, wanted), run.times.batch_size
    if save_profile is not None:
        from evener.profile.serialise import profile_to_json

        save_profile.write_text(profile_to_json(costs.profile), encoding="utf-8")
    _plan_and_print(costs, wanted or costs.batch_size, check=check, out=out, as_json=as_json)


def _check_sources(
    *, script: str | None, model: str | None, cluster: str | None, profile: Path | None
) -> None:
    """Check that the costs come from exactly one source."""
    given = [name for name, value in (("a script", script), ("--model", model)) if value]
    given += ["--profile"] if profile is not None else []
    if len(given) != 1:
        found = " and ".join(given) or "nothing"
        raise typer.BadParameter(
            f"give one of a script, --profile, or --model with --cluster; {found} was given"
        )
    if model is None and cluster is not None:
        raise typer.BadParameter(
            "--cluster needs --model: it describes devices that cannot be measured here, and the "
            "costs of a published model are computed from its shapes. Scripts and profiles are "
            "planned for the devices that were measured"
        )
    if model is not None and cluster is None:
        raise typer.BadParameter("--model needs --cluster, the devices to plan for")


def _read_batch_size(text: str | None) -> int | Literal["max", "auto"] | None:
    if text is None or text == "max" or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(
            f"{text!r} is neither a number of samples above 0, nor max, nor auto",
            param_hint="'--batch-size'",
        )
    return int(text)


def _known(model: str | None, cluster: str | None, profile: Path | None) -> StepCosts | None:
    """Return the costs of a published model or a profile; None if a script is to be measured."""
    from evener.cli.usage import wrong_usage
    from evener.profile.serialise import read_profile
    from evener.subprocess.costs import StepCosts

    if model is not None and cluster is not None:
        with wrong_usage("--model and --cluster"):
            found = _described(model, cluster)
    elif profile is not None:
        with wrong_usage("--profile"):
            found = read_profile(profile)
    else:
        return None
    return StepCosts(profile=found, batch_size=None, not_measured=())


def _described(model: str, cluster: str) -> CostProfile:
    from evener.clusters import cluster_named, datasheet_profile, model_named, read_cluster

    is_file = cluster.endswith((".yaml", ".yml")) or Path(cluster).exists()
    described = read_cluster(Path(cluster)) if is_file else cluster_named(cluster)
    return datasheet_profile(model_named(model), described)


def _read_run(file: Path, model: str | None) -> MeasuredRun:
    from evener.cli.usage import wrong_usage
    from evener.feedback.run_times import read_run

    if model is not None:
        raise typer.BadParameter("--from-run needs measurements: a script, or --profile")
    with wrong_usage("--from-run"):
        return read_run(file)


def _calibrated(
    costs: StepCosts, run: MeasuredRun, wanted: int | Literal["max", "auto"] | None
) -> StepCosts:
    """Return the costs scaled to the times of a run, and print the factors."""
    from evener.errors import ProfileError
    from evener.feedback.calibration import calibrate
    from evener.feedback.whole_steps import without_updates

    batch_size = run.times.batch_size
    if (wanted or costs.batch_size or batch_size) != batch_size:
        raise ProfileError(
            "PROF-054",
            f"The run had batches of {batch_size} samples, and the plan is to be for "
            f"{wanted or costs.batch_size}.",
            why="The times of a run hold only for its batch size.",
            fix=f"Leave out --batch-size, or use the script with batches of {batch_size}.",
        )
    found = calibrate(costs.profile, without_updates(run, costs.profile))
    print("Times by the run", *found.lines(), sep="\n  ", end="\n\n", file=sys.stderr)
    return dataclasses.replace(costs, profile=found.profile)


def _plan_and_print(
    costs: StepCosts,
    batch_size: int | Literal["max", "auto"] | None,
    *,
    check: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    from evener.plan import Plan
    from evener.planner import check_plan, plan_profile

    if batch_size is None:
        raise typer.BadParameter(
            "the batch size of the script is not known; give N, max or auto",
            param_hint="'--batch-size'",
        )
    if check is not None:
        from evener.cli.usage import wrong_usage

        with wrong_usage(str(check)):
            given = Plan.from_json(check.read_text(encoding="utf-8"))
            if isinstance(batch_size, str):
                raise typer.BadParameter(
                    "--check needs a number of samples", param_hint="'--batch-size'"
                )
            planned = check_plan(given, costs.profile, batch_size)
    else:
        planned = plan_profile(costs.profile, batch_size)
    if out is not None:
        out.write_text(planned.plan.to_json(), encoding="utf-8")
    if as_json:
        print(planned.plan.to_json())
    else:
        from evener.report.planned import print_planned

        print_planned(planned)
    _print_taken(costs, file=sys.stderr if as_json else sys.stdout)
    raise typer.Exit(1 if planned.problem else 0)


def _print_taken(costs: StepCosts, file: TextIO) -> None:
    """Print how many layers had been measured in earlier runs, and when."""
    if costs.taken:
        print("\nTimes of layers", *costs.taken, sep="\n  ", file=file)
