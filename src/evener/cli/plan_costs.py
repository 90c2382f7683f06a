"""Costs that ``evener plan`` plans for: of a script, a profile or a published model."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from evener.cli.usage import wrong_usage

if TYPE_CHECKING:
    from evener.clusters import ClusterDescription
    from evener.feedback.run_times import MeasuredRun
    from evener.planner import BatchSize
    from evener.subprocess.costs import StepCosts
    from evener.subprocess.request import StepRequest


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
    from evener.cli.script_args import args_of_script
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
    from evener.profile.serialise import read_profile
    from evener.subprocess.costs import StepCosts

    if model is not None and cluster is not None:
        with wrong_usage("--model and --cluster"):
            return _described(model, cluster)
    if profile is None:
        return None
    with wrong_usage("--profile"):
        found = read_profile(profile)
    return StepCosts(profile=found, batch_size=None, not_measured=())


def _described(model: str, cluster: str) -> StepCosts:
    from evener.clusters import Assumptions, datasheet_profile, model_named
    from evener.subprocess.costs import StepCosts

    described = _read_cluster(cluster)
    return StepCosts(
        profile=datasheet_profile(model_named(model), described),
        batch_size=None,
        not_measured=(),
        described=Assumptions(described=described),
    )


def _read_cluster(cluster: str) -> ClusterDescription:
    from evener.clusters import cluster_named, read_cluster

    is_file = cluster.endswith((".yaml", ".yml")) or Path(cluster).exists()
    return read_cluster(Path(cluster)) if is_file else cluster_named(cluster)


def described_costs(request: StepRequest, cluster: str, time_limit: float) -> StepCosts:
    """Return the costs of a script on a cluster that is not here, from datasheets."""
    from evener.cli.status import status
    from evener.subprocess.costs import described_profile

    with wrong_usage("--cluster"):
        described = _read_cluster(cluster)
    request = dataclasses.replace(request, question="datasheets")
    with status(f"Tracing the first training step of {request.target}"):
        return described_profile(request, described, time_limit=time_limit)


def measured_costs(request: StepRequest, time_limit: float) -> StepCosts:
    """Return the costs of a script, measured in a subprocess."""
    from evener.cli.status import status
    from evener.subprocess.costs import measured_profile

    with status(f"Measuring the first training step of {request.target}"):
        return measured_profile(request, time_limit=time_limit)


def read_measured_run(file: Path, model: str | None, cluster: str | None) -> MeasuredRun:
    """Return the run in the file of ``--from-run``; devices that are not here have none."""
    from evener.feedback.run_times import read_run

    if model is not None or cluster is not None:
        raise typer.BadParameter("--from-run needs measurements: a script, or --profile")
    with wrong_usage("--from-run"):
        return read_run(file)


def calibrated(costs: StepCosts, run: MeasuredRun, wanted: BatchSize | None) -> StepCosts:
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
