"""``evener plan``: the best plan for a model and its devices, its cost, and the reasons."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evener.cli import conventions
from evener.cli.conventions import args_of_script, argument, check_writable, option, status
from evener.errors import ProfileError

if TYPE_CHECKING:
    from evener.plan import Plan
    from evener.planner.clusters import ClusterDescription
    from evener.planner.planning import BatchSize
    from evener.planner.run_times import MeasuredRun
    from evener.run.first_step import StepCosts, StepRequest


def plan(
    context: typer.Context,
    *,
    script: Annotated[
        str | None,
        argument("[SCRIPT]", "A Python file that trains, or with -m a module.", show_default=False),
    ] = None,
    args: conventions.ArgsArgument = None,
    as_module: conventions.AsModuleOption = False,
    batch_size: Annotated[
        str | None,
        option(
            "--batch-size N|max|auto",
            "Samples of the global batch. max: the largest batch that fits into memory. auto: "
            "the smallest batch with nearly the highest throughput. Default: the batch of the "
            "script.",
        ),
    ] = None,
    devices: conventions.DevicesOption = None,
    model: Annotated[
        str | None,
        option(
            "--model NAME",
            "Plan for a published model, such as bert-large, instead of a script. Needs --cluster.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            "--cluster FILE|NAME",
            "Plan for the devices of a cluster: a YAML file that describes it, or a cluster "
            "that evener knows, such as a100-8. The times of a script follow from its operations "
            "and bytes, and the datasheets of the devices.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        option(
            "--profile FILE", "Use the measurements in this file instead of measuring a script."
        ),
    ] = None,
    from_run: Annotated[
        Path | None,
        option(
            "--from-run FILE",
            "Scale the predicted times to a measured run: a file written by evener run "
            "--report-file.",
        ),
    ] = None,
    save_profile: Annotated[
        Path | None, option("--save-profile FILE", "Write the measurements to a file.")
    ] = None,
    check: Annotated[
        Path | None,
        option(
            "--check PLAN",
            "Predict the cost of the plan in this JSON file, instead of searching for a plan.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, option("--out FILE", "Write the plan as JSON, for evener run.")
    ] = None,
    remeasure: Annotated[
        bool,
        option(
            "--remeasure",
            "Measure all layers again, even if measurements for these devices are stored.",
        ),
    ] = False,
    no_gpu_names: conventions.NoGpuNamesOption = False,
    time_limit: conventions.TimeLimitOption = conventions.DEFAULT_LIMIT_SECONDS,
    as_json: Annotated[bool, option("--json", "Print the plan as one JSON object.")] = False,
    schema: Annotated[bool, option("--schema", "Print the JSON Schema of plans and exit.")] = False,
) -> None:
    """Measure the layers of a model, and find the best plan for the devices.

    The model is not trained. Prints the plan, its predicted time and memory, why other plans were
    rejected, and what would make training faster.
    """
    if schema:
        from evener.plan import plan_schema_text

        print(plan_schema_text(), end="")
        raise typer.Exit
    from evener.plan import Plan
    from evener.planner.planning import MOST_SAMPLES, check_plan, plan_profile
    from evener.planner.run_times import read_run
    from evener.run.first_step import StepRequest
    from evener.run.script import read

    if as_module and script is None:
        raise typer.BadParameter("-m needs the name of a module", param_hint="'-m'")
    check_sources(
        script=script, model=model, cluster=cluster, profile=profile, check=check, devices=devices
    )
    words, found = "SCRIPT", None
    if script is not None:
        found = read(script, as_module=as_module)
        args = args_of_script(context, args, found)
        words = shlex.join([*(["-m"] if as_module else []), script, *args])
    wanted = read_batch_size(batch_size)
    check_writable(save_profile)
    check_writable(out)
    run = None
    if from_run is not None:
        if model is not None or cluster is not None:
            raise typer.BadParameter("--from-run needs measurements: a script, or --profile")
        with conventions.wrong_usage("--from-run"):
            run = read_run(from_run)
    if script is None:
        costs = _known_costs(model, cluster, profile)
    else:
        request = StepRequest(
            question="costs" if cluster is None else "datasheets",
            target=script,
            script=found,
            args=tuple(args or ()),
            devices=devices,
            batch_size=wanted if isinstance(wanted, int) else run and run.times.batch_size,
            gpu_names=not no_gpu_names,
            remeasure=remeasure,
        )
        costs = _costs_of_script(request, cluster, time_limit)
    if run is not None:
        with conventions.wrong_usage("--from-run"):
            costs, wanted = _calibrate(costs, run, wanted), run.times.batch_size
    size = wanted or costs.batch_size
    if size is None:
        raise typer.BadParameter(
            "the batch size of the script is not known; give N, max or auto",
            param_hint="'--batch-size'",
        )
    if check is None:
        planned = plan_profile(costs.profile, size)
    else:
        with conventions.wrong_usage(str(check)):
            given = Plan.from_json(check.read_text(encoding="utf-8"))
            if isinstance(size, str):
                raise typer.BadParameter(
                    "--check needs a number of samples", param_hint="'--batch-size'"
                )
            planned = check_plan(given, costs.profile, size)
    if as_json:
        print(planned.plan.to_json())
    else:
        from evener.report.planned import print_planned

        print_planned(planned)
    notes = sys.stderr if as_json else sys.stdout
    if costs.described is not None:
        print("\nAssumed", *costs.described.lines(planned), sep="\n  ", file=notes)
    if costs.taken:
        # How many layers had been measured in earlier runs, and when.
        print("\nTimes of layers", *costs.taken, sep="\n  ", file=notes)
    if wanted == "max" and planned.batch_size == MOST_SAMPLES:
        print(
            f"\nThe search for the largest batch ends at {MOST_SAMPLES:,} samples: more may fit.",
            file=sys.stderr,
        )
    if out is not None:
        conventions.write_result(out, planned.plan.to_json(), is_printed=as_json)
    if save_profile is not None:
        from evener.plan.profile_files import profile_to_json

        conventions.write_result(save_profile, profile_to_json(costs.profile))
    if model is None and not planned.problem:
        where = None if cluster is None else f"--cluster {shlex.quote(cluster)} "
        print(f"\n{_next_step(planned.plan, words, out or check, where, devices)}", file=sys.stderr)
    raise typer.Exit(1 if planned.problem else 0)


def check_sources(
    *,
    script: str | None,
    model: str | None,
    cluster: str | None,
    profile: Path | None,
    check: Path | None,
    devices: str | None = None,
) -> None:
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


def read_batch_size(text: str | None) -> BatchSize | None:
    if text is None or text == "max" or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(
            f"{text!r} is neither a number of samples above 0, nor max, nor auto",
            param_hint="'--batch-size'",
        )
    return int(text)


def _known_costs(model: str | None, cluster: str | None, profile: Path | None) -> StepCosts:
    from evener.plan.profile_files import read_profile
    from evener.planner.datasheets import Assumptions, datasheet_profile
    from evener.planner.published_models import model_named
    from evener.run.first_step import StepCosts

    described = None
    if model is not None and cluster is not None:
        with conventions.wrong_usage("--model and --cluster"):
            described = Assumptions(described=_read_cluster(cluster))
            costs = datasheet_profile(model_named(model), described.described)
    else:
        assert profile is not None
        with conventions.wrong_usage("--profile"):
            costs = read_profile(profile)
    return StepCosts(profile=costs, batch_size=None, described=described)


def _costs_of_script(request: StepRequest, cluster: str | None, time_limit: float) -> StepCosts:
    from evener.run.first_step import described_profile, measured_profile

    if cluster is None:
        with status(f"Measuring the first training step of {request.target}"):
            return measured_profile(request, time_limit=time_limit)
    with conventions.wrong_usage("--cluster"):
        described = _read_cluster(cluster)
    with status(f"Tracing the first training step of {request.target}"):
        return described_profile(request, described, time_limit=time_limit)


def _read_cluster(cluster: str) -> ClusterDescription:
    from evener.planner.clusters import cluster_named, read_cluster

    is_file = cluster.endswith((".yaml", ".yml")) or Path(cluster).exists()
    return read_cluster(Path(cluster)) if is_file else cluster_named(cluster)


def _calibrate(costs: StepCosts, run: MeasuredRun, wanted: BatchSize | None) -> StepCosts:
    from evener.planner.prediction import calibrate, without_updates

    batch_size = run.times.batch_size
    if (wanted or costs.batch_size or batch_size) != batch_size:
        raise ProfileError(
            "PROF-054",
            f"The run had batches of {batch_size} samples, and the plan is to be for "
            f"{wanted or costs.batch_size}.",
            why="The times of a run hold only for its batch size.",
            fix=f"Leave out --batch-size, or use the script with batches of {batch_size}.",
        )
    calibrated = calibrate(costs.profile, without_updates(run, costs.profile))
    print("Times by the run", *calibrated.lines(), sep="\n  ", end="\n\n", file=sys.stderr)
    return dataclasses.replace(costs, profile=calibrated.profile)


def _next_step(
    plan: Plan, words: str, out: Path | None, where: str | None = None, devices: str | None = None
) -> str:
    workers = {name.partition("/")[0] for name in plan.device_names if name.startswith("worker:")}
    command = f"evener launch --workers {len(workers)}" if workers else "evener run"
    if out is None and not workers and where is None:
        chosen = "" if devices is None else f"--devices {shlex.quote(devices)} "
        return f"To train by this plan: {command} {chosen}--plan auto {words}"
    file = shlex.quote(str(out or "plan.json"))
    written = f"evener plan {where or ''}--out {file} {words}; then " if out is None else ""
    there = "" if where is None else ", on the machine that has these devices"
    return f"To train by this plan: {written}{command} --plan {file} {words}{there}"
