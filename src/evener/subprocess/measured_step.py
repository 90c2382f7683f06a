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
    from evener.subprocess.eager_loops import EagerLoops

_LARGE_BYTES = 1 << 20
"""Bytes of variables whose values are left out where no step runs."""


def measure_first_step(request: StepRequest) -> None:
    """Run a script up to its first training step, and answer with the costs of the step.

    Args:
        request: Question ``"costs"``, ``"memory"`` or ``"datasheets"``.
    """
    from evener._tf_private.variables import leave_large_variables_unwritten
    from evener.devices import use_devices
    from evener.profiler.strategy import costing_strategy
    from evener.run.notes import Notes
    from evener.run.script import read
    from evener.run.session import Session
    from evener.subprocess.eager_loops import EagerLoops, stopping_eager_fits

    script = read(request.target, as_module=request.kind == "module")
    used = use_devices(request.devices)
    if request.question != "costs":
        # Nothing runs: a model may be larger than the memory of this machine.
        leave_large_variables_unwritten(_LARGE_BYTES)
    process = os.getpid()

    def answer(traced: Any, num_samples: int | None) -> None:
        # A process that the program forked has no answer to give.
        if os.getpid() != process:
            return
        if request.question == "memory":
            found = _bytes(request, traced)
        elif request.question == "datasheets":
            size = request.batch_size or num_samples
            if size is None:
                reply(request, "no batch size")
            found = _seconds_by_speeds(request, traced, size)
        else:
            size = request.batch_size or num_samples
            if size is None:
                reply(request, "no batch size")
            found = _seconds_and_bytes(request, traced, used, size)
        found["batch_size"] = num_samples
        reply(request, "found", found=found, notes=_what_ran(loops))

    loops = EagerLoops(lambda line: reply(request, "eager", line=line))
    strategy = costing_strategy(used[0].name, answer)
    session = Session(script, strategy, Notes(), gpu_names=request.gpu_names)
    with loops.watching(), stopping_eager_fits(lambda line: reply(request, "eager", line=line)):
        session.run(request.args)
    loops.ended()


def _what_ran(loops: EagerLoops) -> tuple[str, ...]:
    """Return a note on a step that ran: what nobody traced is observed before it is traced."""
    if not loops.first_line:
        return ()
    return (f"evener: {loops.first_line}: this step ran once, since it is no tf.function",)


def _bytes(request: StepRequest, traced: Any) -> dict[str, Any]:
    """Return the layers of a step with their bytes, as `evener.subprocess.costs` reads them."""
    from evener.profile.serialise import model_to_fields
    from evener.profiler.costs import layer_costs

    return {"model": model_to_fields(layer_costs(traced, name=Path(request.target).name))}


def _seconds_by_speeds(request: StepRequest, traced: Any, batch_size: int) -> dict[str, Any]:
    """Return the layers of a step with their seconds on devices of known speeds."""
    from evener.profile.cache import times_to_json
    from evener.profile.serialise import model_to_fields
    from evener.profiler.costs import layer_costs
    from evener.profiler.device_speed import speed_from_json
    from evener.profiler.estimate import estimated_times
    from evener.profiler.fused_estimate import fused_times
    from evener.profiler.profile import batch_sizes
    from evener.profiler.split import split_step

    split, sizes = split_step(traced), batch_sizes(batch_size)
    speeds = {name: speed_from_json(fields) for name, fields in request.speeds.items()}
    return {
        "model": model_to_fields(layer_costs(split, name=Path(request.target).name)),
        **{
            found: {
                name: [times_to_json(times(tasks, speed, sizes)) for tasks in split.layers]
                for name, speed in speeds.items()
            }
            for found, times in (("times", fused_times), ("unfused", estimated_times))
        },
    }


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
