"""Costs of a script's first training step, which is traced or measured instead of run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evener.errors import EvenerWarning
from evener.subprocess.answer import reply
from evener.subprocess.request import StepRequest

if TYPE_CHECKING:
    from evener.devices import UsedDevice


def measure_first_step(request: StepRequest) -> None:
    """Run a script up to its first training step, and answer with the costs of the step.

    Args:
        request: Question ``"costs"`` or ``"memory"``.
    """
    from evener.devices import use_devices
    from evener.profiler.strategy import costing_strategy
    from evener.run.notes import Notes
    from evener.run.script import read
    from evener.run.session import Session

    script = read(request.target, as_module=request.kind == "module")
    used = use_devices(request.devices)
    process = os.getpid()

    def answer(traced: Any, num_samples: int | None) -> None:
        # A process that the program forked has no answer to give.
        if os.getpid() != process:
            return
        if request.question == "memory":
            found = _bytes(request, traced)
        else:
            size = request.batch_size or num_samples
            if size is None:
                reply(request, "no batch size")
            found = _seconds_and_bytes(request, traced, used, size)
        reply(request, "found", found={**found, "batch_size": num_samples})

    strategy = costing_strategy(used[0].name, answer)
    Session(script, strategy, Notes(), gpu_names=request.gpu_names).run(request.args)


def _bytes(request: StepRequest, traced: Any) -> dict[str, Any]:
    """Return the layers of a step with their bytes, as `evener.subprocess.costs` reads them."""
    from evener.profile.serialise import model_to_fields
    from evener.profiler.costs import layer_costs

    return {"model": model_to_fields(layer_costs(traced, name=Path(request.target).name))}


def _seconds_and_bytes(
    request: StepRequest, traced: Any, used: Sequence[UsedDevice], batch_size: int
) -> dict[str, Any]:
    """Return the profile of a step, as `evener.subprocess.costs` reads it."""
    from evener.profile.cache import MeasurementCache
    from evener.profile.serialise import profile_to_json
    from evener.profiler.identity import KnownDevices
    from evener.profiler.profile import profile_step

    name = request.target if request.kind == "module" else Path(request.target).name
    known = KnownDevices(MeasurementCache(refresh=request.remeasure))
    # Nobody sees what this process prints.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EvenerWarning)
        profile, not_measured = profile_step(traced, used, batch_size, name=name, known=known)
    return {
        "profile": profile_to_json(profile),
        "not_measured": not_measured,
        "taken": [layers.to_fields() for layers in known.taken],
        "warnings": [
            str(warning.message)
            for warning in caught
            if issubclass(warning.category, EvenerWarning)
        ],
    }
