"""``evener plan``: measures the training step of a script in a subprocess."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evener.devices.spec import DeviceSpec
from evener.errors import EvenerWarning, RunError
from evener.launch.answer import ending, last_lines, quiet_environment, read_answer
from evener.launch.child_process import ProcessResult, run_child_process
from evener.launch.step_costs import CostRequest
from evener.profile import CostProfile
from evener.profile.known import LayersTaken
from evener.profile.serialise import profile_from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What the training step of a script costs.

    Args:
        profile: On the devices that were asked for.
        batch_size: Samples of the script's batch; None if its shapes do not say it.
        not_measured: For each layer that could not be measured a text that says why.
        taken: For each kind of device how many layers had been measured in earlier runs.
    """

    profile: CostProfile
    batch_size: int | None
    not_measured: tuple[str, ...]
    taken: tuple[LayersTaken, ...] = ()


def measure_in_subprocess(
    request: CostRequest, spec: DeviceSpec, *, limit_seconds: float
) -> StepCosts:
    """Run a script up to its first training step, and measure the step.

    Args:
        request: What to measure.
        spec: The devices, as they were asked for.
        limit_seconds: The time limit.

    Raises:
        RunError: RUN-030 if there was no training step in time, RUN-031 if its batch size is not
            known.
        EvenerError: Any other error that the subprocess raised.

    Warns:
        EvenerWarning: What was warned of in the subprocess while it measured.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        text = replace(request, answer=str(answer)).to_json()
        command = [sys.executable, "-m", "evener.launch.step_costs", text]
        result = run_child_process(command, environ=_environment(spec), limit_seconds=limit_seconds)
        found = read_answer(answer)
    if "profile" in found:
        for text in found["warnings"]:
            warnings.warn(EvenerWarning(text), stacklevel=2)
        return StepCosts(
            profile=profile_from_json(found["profile"]),
            batch_size=found["batch_size"],
            not_measured=tuple(found["not_measured"]),
            taken=tuple(map(LayersTaken.from_fields, found["taken"])),
        )
    raise _no_costs(request.script, found, result, limit_seconds)


def _environment(spec: DeviceSpec) -> dict[str, str]:
    """Return the environment: several devices on the CPU get a part of its cores each."""
    environ: dict[str, str] = {}
    if spec.num_devices is not None and str(spec).startswith("cpu"):
        environ["TF_NUM_INTRAOP_THREADS"] = str(max(1, (os.cpu_count() or 1) // spec.num_devices))
    return {**environ, **quiet_environment()}


def _no_costs(
    script: str, found: dict[str, Any], result: ProcessResult, limit_seconds: float
) -> RunError:
    if found.get("outcome") == "no batch size":
        return RunError(
            "RUN-031",
            f"{script} trains on batches whose size is not known before it runs.",
            why="Layers are measured at numbers of samples up to that of a batch.",
            fix="Say it: --batch-size N.",
        )
    if result.exit_code is None:
        ended = f"it was stopped after {limit_seconds:g} seconds"
    elif result.exit_code:
        how = ending(result.exit_code)
        ended = how[0].lower() + how[1:]
    else:
        ended = "it ended without computing gradients and writing variables in a traced function"
    return RunError(
        "RUN-030",
        f"{script} came to no training step.",
        why=f"As `evener run` would run it, {ended}. {last_lines(result.output)}",
        fix="Make it run with evener run first; --time-limit gives it more time.",
    )
