"""First training step of a program, which runs in a subprocess: its audit, its costs, a plan."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evener.auditing import Audit
from evener.base.libraries import check_installed
from evener.devices.spec import spec_from
from evener.errors import EvenerWarning, PlacementError, RunError
from evener.plan.profile import CostProfile, ModelCosts
from evener.plan.profile_files import warn_of_estimates
from evener.planner.clusters import ClusterDescription
from evener.planner.datasheets import Assumptions, reached_speeds
from evener.planner.planning import plan_profile
from evener.run.eager_steps import eager_step_at
from evener.run.questions import FIX_EAGER, Answer, StepCosts, StepRequest, TargetError, ask, ending
from evener.run.script import Script, read

if TYPE_CHECKING:
    from evener.planner.planning import Planned


_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def read_target(target: str, *, as_module: bool) -> Script | None:
    """Return the script or module that a target names; None if it is ``"module:function"``."""
    is_script = as_module or Path(target).exists() or not _NAMED.fullmatch(target)
    return read(target, as_module=as_module) if is_script else None


def audit_request(
    target: str, args: tuple[str, ...], *, script: Script | None, **choices: Any
) -> StepRequest:
    if script is None and args:
        raise TargetError(
            "PLACE-042",
            f"{target} takes no command line arguments, but {' '.join(args)} follows it.",
            why="Command line arguments are for scripts. The arguments of a function come from its "
            "input_signature, or from a function that returns them.",
            fix="Remove them, or name a function that ends with: return train_step, (x, y).",
        )
    return StepRequest(question="audit", target=target, script=script, args=args, **choices)


def audit_in_subprocess(request: StepRequest, *, limit_seconds: float) -> Audit:
    answer = _answer(request, limit_seconds=limit_seconds)
    if answer.outcome != "found":
        raise _no_audit(request.target, answer, limit_seconds)
    return Audit.from_json(answer.audit)


def _answer(request: StepRequest, **choices: Any) -> Answer:
    answer = ask(request, **choices)
    if answer.outcome == "found":
        # The notes are part of the program's output, which is not shown.
        for note in answer.notes:
            print(note, file=sys.stderr)
    return answer


def _no_audit(target: str, answer: Answer, limit_seconds: float) -> PlacementError:
    assert answer.process is not None
    exit_code = answer.process.exit_code
    if answer.outcome == "eager":
        step = eager_step_at(answer.line)
        under_run = "" if step is None else f" {step}."
        return PlacementError(
            "PLACE-040",
            f"{target} trains eagerly{' at ' + answer.line if answer.line else ''}.",
            why=f"An audit reads the graph of a step, and an eager step has none.{under_run}",
            fix=FIX_EAGER if step is None else f"To audit it, {step.change}.",
        )
    if exit_code is None:
        return PlacementError(
            "PLACE-039",
            f"{target} reached no training step in {limit_seconds:g} seconds.",
            why=f"It was stopped at the time limit. {answer.last_lines()}",
            fix="Increase --time-limit, or shorten what the program does before its first step.",
        )
    if answer.outcome == "ended" or (exit_code == 0 and not answer.outcome):
        return PlacementError(
            "PLACE-037",
            f"{target} ended without a training step.",
            why="None of its traced functions computed gradients and wrote variables. "
            f"{answer.last_lines()}",
            fix="Pass the arguments with which it trains, or name the function of the step as "
            "MODULE:FUNCTION.",
        )
    ended = ending(exit_code)
    return PlacementError(
        "PLACE-038",
        f"{target} failed before its first training step.",
        why=f"{ended[0].upper()}{ended[1:]}. {answer.last_lines()}",
        fix="Make sure that it runs with `python`, then audit it.",
    )


# No device is needed to count bytes, and none is taken from a program that trains.
_COUNTING_DEVICES = "cpu:1"
# Where TensorFlow finds no GPU, the CPU appears as one to the script.
_COUNTING_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1"}
_FIX = "Make it run with evener run first; --time-limit gives it more time."


def measured_profile(request: StepRequest, *, time_limit: float) -> StepCosts:
    # Before the subprocess imports TensorFlow, which takes seconds.
    spec = spec_from(request.devices, os.environ)
    check_installed()
    devices = None if spec.source == "default" else str(spec)
    request = dataclasses.replace(request, devices=devices)
    answer = _answer(request, limit_seconds=time_limit)
    found = answer.measured
    if found is None:
        raise _no_costs(request.target, answer, time_limit)
    for text in found.warnings:
        warnings.warn(EvenerWarning(text), stacklevel=2)
    warn_of_estimates(found.not_measured)
    return found


def counted_memory(
    script: Script, args: Sequence[str], *, time_limit: float
) -> tuple[ModelCosts, int | None]:
    check_installed()
    request = StepRequest(
        question="memory",
        target=script.given,
        script=script,
        args=tuple(args),
        devices=_COUNTING_DEVICES,
    )
    answer = _answer(request, environ=_COUNTING_ENVIRONMENT, limit_seconds=time_limit)
    if answer.traced is None:
        raise RunError(
            "RUN-040",
            f"The memory of {script.given} cannot be estimated: it reached no training step.",
            why=answer.why_no_step(time_limit),
            fix=_fix(answer),
        )
    return answer.traced.model, answer.traced.batch_size


def described_profile(
    request: StepRequest, described: ClusterDescription, *, time_limit: float
) -> StepCosts:
    check_installed()
    speeds = reached_speeds(described)
    request = dataclasses.replace(request, devices=_COUNTING_DEVICES, speeds=speeds)
    answer = _answer(request, environ=_COUNTING_ENVIRONMENT, limit_seconds=time_limit)
    found = answer.traced
    if found is None:
        raise _no_costs(request.target, answer, time_limit)
    fused, unfused = (
        CostProfile(model=found.model, cluster=described.cluster, times=times)
        for times in (found.times, found.unfused)
    )
    return StepCosts(
        profile=fused,
        batch_size=found.batch_size,
        described=Assumptions(described=described, unfused=unfused),
    )


def unknown_batch_size(script: str, *, why: str, fix: str) -> RunError:
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
        f"{script} reached no training step.",
        why=answer.why_no_step(limit_seconds),
        fix=_fix(answer),
    )


def _fix(answer: Answer) -> str:
    if answer.outcome != "eager":
        return _FIX
    step = eager_step_at(answer.line)
    return FIX_EAGER if step is None else f"{step.change[0].upper()}{step.change[1:]}."


def plan_script(
    script: Script, args: Sequence[str], *, devices: str | None, gpu_names: bool, time_limit: float
) -> Planned:
    request = StepRequest(
        question="costs",
        target=script.given,
        script=script,
        args=tuple(args),
        devices=devices,
        gpu_names=gpu_names,
    )
    costs = measured_profile(request, time_limit=time_limit)
    if costs.batch_size is None:
        raise unknown_batch_size(
            script.given,
            why="A plan is made for one batch size.",
            fix="Make the plan first: evener plan --batch-size N --out plan.json "
            f"{script.words}; then evener run --plan plan.json {script.words}.",
        )
    return plan_profile(costs.profile, costs.batch_size)
