"""The costs of a script's training step, for all commands that make a plan of them."""

from __future__ import annotations

import dataclasses
import os

from evener.devices.spec import spec_from
from evener.launch.plan_subprocess import StepCosts, measure_in_subprocess
from evener.launch.script import read
from evener.launch.step_costs import CostRequest
from evener.profiler.known import warn_of_estimates
from evener.versions import check_installed


def measured_profile(request: CostRequest, *, time_limit: float) -> StepCosts:
    """Run a script up to its first training step in a subprocess, and measure the step.

    Warns (PROF-020) if the times of layers are estimated. This process does not import TensorFlow.

    Args:
        request: The script, and what to measure; without devices, those of ``EVENER_DEVICES``.
        time_limit: Seconds for the script and the measuring together.

    Returns:
        The profile, and the samples of the script's own batch if they are known.

    Raises:
        RunError: RUN-001 to RUN-003, RUN-021 if the script cannot be read, RUN-030 if it came to
            no training step in time, RUN-031 if its batch size is not known.
        EvenerError: Any other error that the subprocess raised.
    """
    # Before the subprocess imports TensorFlow, which takes seconds.
    read(request.script, as_module=request.as_module)
    spec = spec_from(request.devices, os.environ)
    check_installed()
    devices = None if spec.source == "default" else str(spec)
    found = measure_in_subprocess(
        dataclasses.replace(request, devices=devices), limit_seconds=time_limit
    )
    warn_of_estimates(found.not_measured)
    return found
