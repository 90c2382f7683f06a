"""``evener plan``: measures the training step of a script in a subprocess."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from evener.errors import EvenerWarning, RunError
from evener.launch.answer import ask, why_no_step
from evener.launch.child_process import ProcessResult
from evener.launch.step_costs import CostRequest
from evener.profile import CostProfile
from evener.profile.serialise import profile_from_json
from evener.profiler.known import LayersTaken


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


def measure_in_subprocess(request: CostRequest, *, limit_seconds: float) -> StepCosts:
    """Run a script up to its first training step, and measure the step.

    Args:
        request: What to measure.
        limit_seconds: The time limit.

    Raises:
        RunError: RUN-030 if there was no training step in time, RUN-031 if its batch size is not
            known.
        EvenerError: Any other error that the subprocess raised.

    Warns:
        EvenerWarning: What was warned of in the subprocess while it measured.
    """
    found, result = ask("evener.launch.step_costs", request, limit_seconds=limit_seconds)
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


def _no_costs(
    script: str, found: dict[str, Any], result: ProcessResult, limit_seconds: float
) -> RunError:
    if found.get("outcome") == "no batch size":
        return RunError(
            "RUN-031",
            f"{script} trains on batches whose size is not known before it runs.",
            why="Layers are measured at numbers of samples up to that of a batch.",
            fix="Add --batch-size N.",
        )
    return RunError(
        "RUN-030",
        f"{script} came to no training step.",
        why=why_no_step(result, limit_seconds),
        fix="Make it run with evener run first; --time-limit gives it more time.",
    )
