"""``evener plan``: the best plan for a model and its devices, its cost, and the reasons."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from evener.cli.options import (
    DEFAULT_LIMIT_SECONDS,
    DevicesOption,
    NoGpuNamesOption,
    TimeLimitOption,
)
from evener.cli.plan_options import (
    BatchSizeOption,
    CheckOption,
    ClusterOption,
    FromRunOption,
    ModelOption,
    OutOption,
    ProfileOption,
    RemeasureOption,
    SaveProfileOption,
)

if TYPE_CHECKING:
    from evener.planner import BatchSize
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
    batch_size: BatchSizeOption = None,
    devices: DevicesOption = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    profile: ProfileOption = None,
    from_run: FromRunOption = None,
    save_profile: SaveProfileOption = None,
    check: CheckOption = None,
    out: OutOption = None,
    remeasure: RemeasureOption = False,
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
    if schema:
        from evener.plan import plan_schema_text

        print(plan_schema_text(), end="")
        raise typer.Exit
    from evener.cli import plan_costs
    from evener.cli.usage import check_writable, wrong_usage
    from evener.subprocess.request import StepRequest

    if as_module and script is None:
        raise typer.BadParameter("-m needs the name of a module", param_hint="'-m'")
    plan_costs.check_sources(script=script, model=model, cluster=cluster, profile=profile)
    wanted = plan_costs.read_batch_size(batch_size)
    for file in (save_profile, out):
        check_writable(file)
    run = None if from_run is None else plan_costs.read_measured_run(from_run, model)
    costs = plan_costs.known_costs(model, cluster, profile)
    if costs is None:
        assert script is not None
        request = StepRequest(
            question="costs",
            target=script,
            kind="module" if as_module else "script",
            args=tuple(args or ()),
            devices=devices,
            batch_size=wanted if isinstance(wanted, int) else run and run.times.batch_size,
            gpu_names=not no_gpu_names,
            remeasure=remeasure,
        )
        costs = plan_costs.measured_costs(request, time_limit)
    if run is not None:
        with wrong_usage("--from-run"):
            costs, wanted = plan_costs.calibrated(costs, run, wanted), run.times.batch_size
    if save_profile is not None:
        from evener.profile.serialise import profile_to_json

        save_profile.write_text(profile_to_json(costs.profile), encoding="utf-8")
    _plan_and_print(costs, wanted or costs.batch_size, check=check, out=out, as_json=as_json)


def _plan_and_print(
    costs: StepCosts,
    batch_size: BatchSize | None,
    *,
    check: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    from evener.cli.usage import wrong_usage
    from evener.plan import Plan
    from evener.planner import check_plan, plan_profile

    if batch_size is None:
        raise typer.BadParameter(
            "the batch size of the script is not known; give N, max or auto",
            param_hint="'--batch-size'",
        )
    if check is not None:
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
