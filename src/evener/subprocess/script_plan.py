"""Plan for a script that is run right after it, as ``evener run --plan auto`` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evener.planner import plan_profile
from evener.subprocess.costs import measured_profile, unknown_batch_size
from evener.subprocess.request import StepRequest

if TYPE_CHECKING:
    from evener.planner import Planned
    from evener.run.script import Script


def plan_script(
    script: Script,
    args: Sequence[str],
    *,
    devices: str | None,
    gpu_names: bool,
    time_limit: float,
) -> Planned:
    """Measure the first training step of a script in a subprocess, and return the best plan.

    Args:
        script: Script or module.
        args: Its command line arguments.
        devices: Device spec; None for ``EVENER_DEVICES``, else all devices.
        gpu_names: Whether CPU devices appear as GPUs, where there is no GPU.
        time_limit: Seconds for the script and the measuring together, above 0.

    Raises:
        RunError: RUN-031 if the batch size is not known before the script runs; others as in
            `evener.subprocess.costs.measured_profile`.
        PlanError: If no plan fits.
    """
    request = StepRequest(
        question="costs",
        target=script.given,
        kind="script" if script.module is None else "module",
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
