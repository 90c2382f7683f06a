"""``evener plan``: the best plan for a model and its devices, its cost, and the reasons."""

from __future__ import annotations

import shlex
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
from evener.cli.script_args import ArgsArgument, AsModuleOption

if TYPE_CHECKING:
    from evener.plan import Plan
    from evener.planner import BatchSize, Planned
    from evener.subprocess.costs import StepCosts


def plan(
    context: typer.Context,
    *,
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCRIPT]",
            show_default=False,
            help="A Python file that trains, or with -m a module.",
        ),
    ] = None,
    args: ArgsArgument = None,
    as_module: AsModuleOption = False,
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
    from evener.cli.usage import check_writable, write_result, wrong_usage
    from evener.subprocess.request import StepRequest

    if as_module and script is None:
        raise typer.BadParameter("-m needs the name of a module", param_hint="'-m'")
    plan_costs.check_sources(
        script=script,
        model=model,
        cluster=cluster,
        profile=profile,
        check=check,
        devices=devices,
    )
    args = plan_costs.read_args(context, args, script=script, as_module=as_module)
    wanted = plan_costs.read_batch_size(batch_size)
    for file in (save_profile, out):
        check_writable(file)
    run = None if from_run is None else plan_costs.read_measured_run(from_run, model, cluster)
    costs = plan_costs.known_costs(model, cluster, profile)
    if costs is None:
        assert script is not None
        request = StepRequest(
            question="costs",
            target=script,
            kind="module" if as_module else "script",
            args=tuple(args),
            devices=devices,
            batch_size=wanted if isinstance(wanted, int) else run and run.times.batch_size,
            gpu_names=not no_gpu_names,
            remeasure=remeasure,
        )
        if cluster is None:
            costs = plan_costs.measured_costs(request, time_limit)
        else:
            costs = plan_costs.described_costs(request, cluster, time_limit)
    if run is not None:
        with wrong_usage("--from-run"):
            costs, wanted = plan_costs.calibrated(costs, run, wanted), run.times.batch_size
    planned = _plan(costs, wanted or costs.batch_size, check)
    _print_planned(planned, costs, as_json=as_json)
    if out is not None:
        write_result(out, planned.plan.to_json(), is_printed=as_json)
    if save_profile is not None:
        from evener.profile.serialise import profile_to_json

        write_result(save_profile, profile_to_json(costs.profile))
    if model is None and not planned.problem:
        words = shlex.join([*(["-m"] if as_module else []), script, *args]) if script else "SCRIPT"
        where = None if cluster is None else f"--cluster {shlex.quote(cluster)} "
        print(f"\n{_next_step(planned.plan, words, out or check, where)}", file=sys.stderr)
    raise typer.Exit(1 if planned.problem else 0)


def _plan(costs: StepCosts, batch_size: BatchSize | None, check: Path | None) -> Planned:
    """Return the best plan, or the given one, with its predicted cost."""
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
            return check_plan(given, costs.profile, batch_size)
    return plan_profile(costs.profile, batch_size)


def _print_planned(planned: Planned, costs: StepCosts, *, as_json: bool) -> None:
    if as_json:
        print(planned.plan.to_json())
    else:
        from evener.report.planned import print_planned

        print_planned(planned)
    if costs.described is not None:
        lines = costs.described.lines(planned)
        print("\nAssumed", *lines, sep="\n  ", file=sys.stderr if as_json else sys.stdout)
    _print_taken(costs, file=sys.stderr if as_json else sys.stdout)


def _next_step(plan: Plan, words: str, out: Path | None, where: str | None = None) -> str:
    """Return what to do with a plan.

    Args:
        plan: The plan.
        words: Script with its arguments, as on the command line.
        out: File that holds the plan; None if it was not written.
        where: Option for a cluster that is not here; None for the devices of this machine.
    """
    workers = {name.partition("/")[0] for name in plan.device_names if name.startswith("worker:")}
    command = f"evener launch --workers {len(workers)}" if workers else "evener run"
    if out is None and not workers and where is None:
        return f"To train by this plan: {command} --plan auto {words}"
    file = shlex.quote(str(out or "plan.json"))
    written = f"evener plan {where or ''}--out {file} {words}; then " if out is None else ""
    there = "" if where is None else ", on the machine that has these devices"
    return f"To train by this plan: {written}{command} --plan {file} {words}{there}"


def _print_taken(costs: StepCosts, file: TextIO) -> None:
    """Print how many layers had been measured in earlier runs, and when."""
    if costs.taken:
        print("\nTimes of layers", *costs.taken, sep="\n  ", file=file)
