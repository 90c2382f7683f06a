"""``evener plan``: the best plan for a model and its devices, its cost, and the reasons."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from evener.cli.conventions import (
    DEFAULT_LIMIT_SECONDS,
    ArgsArgument,
    AsModuleOption,
    DevicesOption,
    NoGpuNamesOption,
    TimeLimitOption,
    wrong_usage,
)

if TYPE_CHECKING:
    from evener.plan import Plan
    from evener.planner.clusters import ClusterDescription
    from evener.planner.planning import BatchSize, Planned
    from evener.planner.run_times import MeasuredRun
    from evener.run.first_step import StepCosts
    from evener.run.questions import StepRequest


# Options of ``evener plan``.

BatchSizeOption = Annotated[
    str | None,
    typer.Option(
        "--batch-size",
        metavar="N|max|auto",
        help="Samples of the global batch. max: the largest batch that fits into memory. auto: "
        "the smallest batch with nearly the highest throughput. Default: the batch of the "
        "script.",
    ),
]

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Plan for a published model, such as bert-large, instead of a script. Needs "
        "--cluster.",
    ),
]

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="FILE|NAME",
        help="Plan for the devices of a cluster: a YAML file that describes it, or a cluster "
        "that evener knows, such as a100-8. The times of a script follow from its operations and "
        "bytes, and the datasheets of the devices.",
    ),
]

ProfileOption = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Use the measurements in this file instead of measuring a script.",
    ),
]

FromRunOption = Annotated[
    Path | None,
    typer.Option(
        "--from-run",
        metavar="FILE",
        help="Scale the predicted times to a measured run: a file written by evener run "
        "--report-file.",
    ),
]

SaveProfileOption = Annotated[
    Path | None,
    typer.Option("--save-profile", metavar="FILE", help="Write the measurements to a file."),
]

CheckOption = Annotated[
    Path | None,
    typer.Option(
        "--check",
        metavar="PLAN",
        exists=True,
        dir_okay=False,
        help="Predict the cost of the plan in this JSON file, instead of searching for a plan.",
    ),
]

OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write the plan as JSON, for evener run."),
]

RemeasureOption = Annotated[
    bool,
    typer.Option(
        "--remeasure",
        help="Measure all layers again, even if measurements for these devices are stored.",
    ),
]


# Costs that ``evener plan`` plans for: of a script, a profile or a published model.


def check_sources(
    *,
    script: str | None,
    model: str | None,
    cluster: str | None,
    profile: Path | None,
    check: Path | None,
    devices: str | None = None,
) -> None:
    """Check that the costs come from exactly one source."""
    given = [name for name, value in (("a script", script), ("--model", model)) if value]
    given += ["--profile"] if profile is not None else []
    if not given and check is not None:
        raise typer.BadParameter(
            f"a plan does not contain the costs of layers; evener plan --check {check} SCRIPT "
            "takes those of the script, which are stored, and --profile FILE those of a file",
            param_hint="'--check'",
        )
    if len(given) != 1:
        found = " and ".join(given) or "nothing"
        raise typer.BadParameter(
            f"give one of a script, --profile, or --model with --cluster; {found} was given"
        )
    if profile is not None and cluster is not None:
        raise typer.BadParameter(
            "--cluster needs a script or --model: a profile has the times of the devices that were "
            "measured, and no others"
        )
    if cluster is not None and devices is not None:
        raise typer.BadParameter(
            "--cluster says for which devices to plan; leave out --cluster or --devices",
            param_hint="'--devices'",
        )
    if model is not None and cluster is None:
        raise typer.BadParameter("--model needs --cluster, the devices to plan for")


def read_args(
    context: typer.Context, args: list[str] | None, *, script: str | None, as_module: bool
) -> list[str]:
    """Return the arguments of the script, which has to be readable."""
    from evener.cli.conventions import args_of_script
    from evener.run.script import read

    if script is None:
        return []
    return args_of_script(context, args, read(script, as_module=as_module))


def read_batch_size(text: str | None) -> BatchSize | None:
    """Return the value of ``--batch-size``."""
    if text is None or text == "max" or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(
            f"{text!r} is neither a number of samples above 0, nor max, nor auto",
            param_hint="'--batch-size'",
        )
    return int(text)


def known_costs(model: str | None, cluster: str | None, profile: Path | None) -> StepCosts | None:
    """Return the costs of a published model or a profile; None if a script is to be measured."""
    from evener.plan.profile_files import read_profile
    from evener.run.first_step import StepCosts

    if model is not None and cluster is not None:
        with wrong_usage("--model and --cluster"):
            return _described(model, cluster)
    if profile is None:
        return None
    with wrong_usage("--profile"):
        found = read_profile(profile)
    return StepCosts(profile=found, batch_size=None, not_measured=())


def _described(model: str, cluster: str) -> StepCosts:
    from evener.planner.datasheets import Assumptions, datasheet_profile
    from evener.planner.published_models import model_named
    from evener.run.first_step import StepCosts

    described = _read_cluster(cluster)
    return StepCosts(
        profile=datasheet_profile(model_named(model), described),
        batch_size=None,
        not_measured=(),
        described=Assumptions(described=described),
    )


def _read_cluster(cluster: str) -> ClusterDescription:
    from evener.planner.clusters import cluster_named, read_cluster

    is_file = cluster.endswith((".yaml", ".yml")) or Path(cluster).exists()
    return read_cluster(Path(cluster)) if is_file else cluster_named(cluster)


def described_costs(request: StepRequest, cluster: str, time_limit: float) -> StepCosts:
    """Return the costs of a script on a cluster that is not here, from datasheets."""
    from evener.cli.conventions import status
    from evener.run.first_step import described_profile

    with wrong_usage("--cluster"):
        described = _read_cluster(cluster)
    request = dataclasses.replace(request, question="datasheets")
    with status(f"Tracing the first training step of {request.target}"):
        return described_profile(request, described, time_limit=time_limit)


def measured_costs(request: StepRequest, time_limit: float) -> StepCosts:
    """Return the costs of a script, measured in a subprocess."""
    from evener.cli.conventions import status
    from evener.run.first_step import measured_profile

    with status(f"Measuring the first training step of {request.target}"):
        return measured_profile(request, time_limit=time_limit)


def read_measured_run(file: Path, model: str | None, cluster: str | None) -> MeasuredRun:
    """Return the run in the file of ``--from-run``; devices that are not here have none."""
    from evener.planner.run_times import read_run

    if model is not None or cluster is not None:
        raise typer.BadParameter("--from-run needs measurements: a script, or --profile")
    with wrong_usage("--from-run"):
        return read_run(file)


def calibrated(costs: StepCosts, run: MeasuredRun, wanted: BatchSize | None) -> StepCosts:
    """Return the costs scaled to the times of a run, and print the factors."""
    from evener.errors import ProfileError
    from evener.planner.calibration import calibrate, without_updates

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


# ``evener plan``: the best plan for a model and its devices, its cost, and the reasons.


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
    from evener.cli.conventions import check_writable, write_result, wrong_usage
    from evener.run.questions import StepRequest

    if as_module and script is None:
        raise typer.BadParameter("-m needs the name of a module", param_hint="'-m'")
    check_sources(
        script=script,
        model=model,
        cluster=cluster,
        profile=profile,
        check=check,
        devices=devices,
    )
    args = read_args(context, args, script=script, as_module=as_module)
    wanted = read_batch_size(batch_size)
    for file in (save_profile, out):
        check_writable(file)
    run = None if from_run is None else read_measured_run(from_run, model, cluster)
    costs = known_costs(model, cluster, profile)
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
            costs = measured_costs(request, time_limit)
        else:
            costs = described_costs(request, cluster, time_limit)
    if run is not None:
        with wrong_usage("--from-run"):
            costs, wanted = calibrated(costs, run, wanted), run.times.batch_size
    planned = _plan(costs, wanted or costs.batch_size, check)
    _print_planned(planned, costs, as_json=as_json)
    if out is not None:
        write_result(out, planned.plan.to_json(), is_printed=as_json)
    if save_profile is not None:
        from evener.plan.profile_files import profile_to_json

        write_result(save_profile, profile_to_json(costs.profile))
    if model is None and not planned.problem:
        words = shlex.join([*(["-m"] if as_module else []), script, *args]) if script else "SCRIPT"
        where = None if cluster is None else f"--cluster {shlex.quote(cluster)} "
        print(f"\n{_next_step(planned.plan, words, out or check, where)}", file=sys.stderr)
    raise typer.Exit(1 if planned.problem else 0)


def _plan(costs: StepCosts, batch_size: BatchSize | None, check: Path | None) -> Planned:
    """Return the best plan, or the given one, with its predicted cost."""
    from evener.cli.conventions import wrong_usage
    from evener.plan import Plan
    from evener.planner.planning import check_plan, plan_profile

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
    """Return what to do with a plan."""
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
