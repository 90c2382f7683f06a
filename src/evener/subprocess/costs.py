"""Costs of a script's training step, for commands that plan with them or estimate its memory."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from evener.clusters import Assumptions, ClusterDescription, reached_speeds
from evener.devices.spec import spec_from
from evener.errors import EvenerWarning, RunError
from evener.profile import CostProfile, ModelCosts
from evener.profile.cache import times_from_json
from evener.profile.serialise import model_from_fields, profile_from_json
from evener.profiler.known import LayersTaken, warn_of_estimates
from evener.run.eager_step import eager_step_at
from evener.run.script import Script, read
from evener.subprocess.answer import FIX_EAGER, Answer, ask
from evener.subprocess.request import StepRequest
from evener.versions import check_installed

# No device is needed to count bytes, and none is taken from a program that trains.
_COUNTING_DEVICES = "cpu:1"
# Where TensorFlow finds no GPU, the CPU appears as one to the script.
_COUNTING_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1"}
_FIX = "Make it run with evener run first; --time-limit gives it more time."


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Costs of the training step of a script.

    Args:
        profile: Costs on the devices that were asked for.
        batch_size: Samples of the script's batch; None if its shapes do not say it.
        not_measured: Layers that could not be measured, each with the reason.
        taken: Number of layers that had been measured in earlier runs, by kind of device.
        described: Assumptions of costs that were computed; None for measured ones.
    """

    profile: CostProfile
    batch_size: int | None
    not_measured: tuple[str, ...]
    taken: tuple[LayersTaken, ...] = ()
    described: Assumptions | None = None


def measured_profile(request: StepRequest, *, time_limit: float) -> StepCosts:
    """Run a script up to its first training step in a subprocess, and measure the step.

    Warns (PROF-020) if the times of layers are estimated, and of what the subprocess warned of
    while it measured. This process does not import TensorFlow.

    Args:
        request: Question for costs; without devices, those of ``EVENER_DEVICES``, else all.
        time_limit: Seconds for the script and the measuring together, above 0.

    Returns:
        The profile, and the samples of the script's own batch if they are known.

    Raises:
        RunError: RUN-001 to RUN-003, RUN-021 if the script cannot be read, RUN-030 if it came to
            no training step in time, RUN-031 if its batch size is not known.
        EvenerError: Any other error that the subprocess raised.
    """
    # Before the subprocess imports TensorFlow, which takes seconds.
    read(request.target, as_module=request.kind == "module")
    spec = spec_from(request.devices, os.environ)
    check_installed()
    devices = None if spec.source == "default" else str(spec)
    request = dataclasses.replace(request, devices=devices)
    answer = ask(request, limit_seconds=time_limit)
    if answer.outcome != "found":
        raise _no_costs(request.target, answer, time_limit)
    _print_notes(answer)
    costs = _step_costs(answer)
    warn_of_estimates(costs.not_measured)
    return costs


def _step_costs(answer: Answer) -> StepCosts:
    found = answer.found
    for text in found["warnings"]:
        warnings.warn(EvenerWarning(text), stacklevel=3)
    return StepCosts(
        profile=profile_from_json(found["profile"]),
        batch_size=found["batch_size"],
        not_measured=tuple(found["not_measured"]),
        taken=tuple(map(LayersTaken.from_fields, found["taken"])),
    )


def counted_memory(
    script: Script, args: Sequence[str], *, time_limit: float
) -> tuple[ModelCosts, int | None]:
    """Run a script up to its first training step in a subprocess, and count the bytes of the step.

    Nothing is measured, and no device is needed.

    Args:
        script: Script or module.
        args: Its command line arguments.
        time_limit: Seconds for the script, above 0.

    Returns:
        The layers, and the samples of the script's own batch; None if its shapes do not say it.

    Raises:
        RunError: RUN-040 if there was no training step in time.
        EvenerError: Any other error that the subprocess raised.
    """
    check_installed()
    request = StepRequest(
        question="memory",
        target=script.given,
        kind="script" if script.module is None else "module",
        args=tuple(args),
        devices=_COUNTING_DEVICES,
    )
    answer = ask(request, environ=_COUNTING_ENVIRONMENT, limit_seconds=time_limit)
    if answer.outcome != "found":
        raise RunError(
            "RUN-040",
            f"The memory of {script.given} cannot be estimated: it came to no training step.",
            why=answer.why_no_step(time_limit),
            fix=_fix(answer),
        )
    _print_notes(answer)
    return model_from_fields(answer.found["model"]), answer.found["batch_size"]


def described_profile(
    request: StepRequest, described: ClusterDescription, *, time_limit: float
) -> StepCosts:
    """Run a script up to its first training step, and compute its costs on a described cluster.

    The step is traced on the CPU; nothing of it is measured. Its times follow from the operations
    and bytes of every kernel, and the datasheets of the devices.

    Args:
        request: Question ``"datasheets"``, without speeds.
        described: Cluster, with a datasheet for each type of device.
        time_limit: Seconds for the script, above 0.

    Raises:
        ProfileError: PROF-041 if a type of device has no datasheet.
        RunError: RUN-030 if it came to no training step in time, RUN-031 if its batch size is not
            known.
        EvenerError: Any other error that the subprocess raised.
    """
    read(request.target, as_module=request.kind == "module")
    check_installed()
    speeds = reached_speeds(described)
    request = dataclasses.replace(request, devices=_COUNTING_DEVICES, speeds=speeds)
    answer = ask(request, environ=_COUNTING_ENVIRONMENT, limit_seconds=time_limit)
    if answer.outcome != "found":
        raise _no_costs(request.target, answer, time_limit)
    _print_notes(answer)
    model = model_from_fields(answer.found["model"])
    fused, unfused = (
        CostProfile(
            model=model,
            cluster=described.cluster,
            times={
                name: tuple(map(times_from_json, layers))
                for name, layers in answer.found[key].items()
            },
        )
        for key in ("times", "unfused")
    )
    return StepCosts(
        profile=fused,
        batch_size=answer.found["batch_size"],
        not_measured=(),
        described=Assumptions(described=described, unfused=unfused),
    )


def unknown_batch_size(script: str, *, why: str, fix: str) -> RunError:
    """Return the error for a script whose batches have no size before it runs."""
    return RunError(
        "RUN-031",
        f"{script} trains on batches whose size is not known before it runs.",
        why=why,
        fix=fix,
    )


def _no_costs(script: str, answer: Answer, limit_seconds: float) -> RunError:
    if answer.outcome == "no batch size":
        return unknown_batch_size(
            script,
            why="Layers are measured at numbers of samples up to that of a batch.",
            fix="Add --batch-size N.",
        )
    return RunError(
        "RUN-030",
        f"{script} came to no training step.",
        why=answer.why_no_step(limit_seconds),
        fix=_fix(answer),
    )


def _fix(answer: Answer) -> str:
    if answer.outcome != "eager":
        return _FIX
    step = eager_step_at(answer.line)
    return FIX_EAGER if step is None else f"{step.change[0].upper()}{step.change[1:]}."


def _print_notes(answer: Answer) -> None:
    for note in answer.notes:
        print(note, file=sys.stderr)
