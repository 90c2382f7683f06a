"""The costs of a script's training step, for all commands that make a plan of them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from evener.devices.spec import spec_from
from evener.launch.plan_subprocess import StepCosts, measure_in_subprocess
from evener.launch.script import read
from evener.launch.step_costs import CostRequest
from evener.profiler.known import warn_of_estimates
from evener.versions import check_installed


def measured_profile(
    script: str,
    args: Sequence[str] = (),
    *,
    as_module: bool = False,
    devices: str | None = None,
    batch_size: int | None = None,
    gpu_names: bool = True,
    time_limit: float,
    remeasure: bool = False,
) -> StepCosts:
    """Run a script up to its first training step in a subprocess, and measure the step.

    Warns (PROF-020) if the times of layers are estimated. This process does not import TensorFlow.

    Args:
        script: The path of the script, or the name of the module.
        args: Its command line arguments.
        as_module: Whether it is a module, which runs as ``python -m`` does.
        devices: A device spec; None for ``EVENER_DEVICES``, else all.
        batch_size: The most samples to measure, at least 1; None for the batch of the script.
        gpu_names: Whether CPU devices appear as GPUs to the script, where there is no GPU.
        time_limit: Seconds for the script and the measuring together.
        remeasure: Whether layers are measured again that were measured on such devices before.

    Returns:
        The profile, and the samples of the script's own batch if they are known.

    Raises:
        RunError: RUN-001 to RUN-003, RUN-021 if the script cannot be read, RUN-030 if it came to
            no training step in time, RUN-031 if its batch size is not known.
        EvenerError: Any other error that the subprocess raised.
    """
    # Before the subprocess imports TensorFlow, which takes seconds.
    read(script, as_module=as_module)
    spec = spec_from(devices, os.environ)
    check_installed()
    request = CostRequest(
        script=script,
        as_module=as_module,
        args=tuple(args),
        devices=None if spec.source == "default" else str(spec),
        batch_size=batch_size,
        gpu_names=gpu_names,
        remeasure=remeasure,
    )
    found = measure_in_subprocess(request, limit_seconds=time_limit)
    warn_of_estimates(found.not_measured)
    return found
