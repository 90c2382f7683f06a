"""Runs a script up to its first training step, and measures the step instead of running it.

The module runs in a subprocess, ``python -m evener.launch.step_costs REQUEST``, and writes the
result as JSON into a file. ``REQUEST`` is JSON too; see `CostRequest`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evener.errors import EvenerWarning
from evener.launch.answer import carry_out, write_answer
from evener.launch.request import SubprocessRequest

if TYPE_CHECKING:
    from evener.devices import UsedDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRequest(SubprocessRequest):
    """A request for the costs of a script's training step.

    Args:
        script: The path of the script, or the name of the module.
        as_module: Whether it is a module.
        devices: A device spec; None for ``EVENER_DEVICES``, else all.
        gpu_names: Whether CPU devices appear as GPUs, where there is no GPU.
        batch_size: The most samples to measure; None for the batch of the script.
        remeasure: Whether layers are measured that were measured before.
    """

    script: str
    as_module: bool
    devices: str | None
    gpu_names: bool
    batch_size: int | None = None
    remeasure: bool = False


def main() -> None:
    """Carry out the request on the command line."""
    carry_out(CostRequest.from_json(sys.argv[1]), _run)


def _run(request: CostRequest) -> None:
    from evener.devices import use_devices
    from evener.launch.notes import Notes
    from evener.launch.script import read
    from evener.launch.session import Session
    from evener.profiler.strategy import costing_strategy

    script = read(request.script, as_module=request.as_module)
    used = use_devices(request.devices)
    process = os.getpid()

    def measure(traced: Any, num_samples: int | None) -> None:
        if os.getpid() != process:
            return
        size = request.batch_size or num_samples
        if size is None:
            write_answer(request.answer, {"outcome": "no batch size"})
        answer = _measured(request, traced, used, size)
        write_answer(request.answer, {**answer, "batch_size": num_samples})

    strategy = costing_strategy(used[0].name, measure)
    Session(script, strategy, Notes(), gpu_names=request.gpu_names).run(request.args)


def _measured(
    request: CostRequest, traced: Any, used: Sequence[UsedDevice], batch_size: int
) -> dict[str, Any]:
    """Return the profile of a step, as `plan_subprocess` reads it."""
    from evener.profile.cache import MeasurementCache
    from evener.profile.serialise import profile_to_json
    from evener.profiler.identity import KnownDevices
    from evener.profiler.profile import profile_step

    name = request.script if request.as_module else Path(request.script).name
    known = KnownDevices(MeasurementCache(refresh=request.remeasure))
    # Nobody sees what this process prints.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EvenerWarning)
        profile, not_measured = profile_step(traced, used, batch_size, name=name, known=known)
    return {
        "profile": profile_to_json(profile),
        "not_measured": not_measured,
        "taken": [layers.to_fields() for layers in known.taken],
        "warnings": [str(w.message) for w in caught if issubclass(w.category, EvenerWarning)],
    }


if __name__ == "__main__":
    main()
