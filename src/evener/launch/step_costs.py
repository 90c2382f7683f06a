"""Runs a script up to its first training step, and measures the step instead of running it.

The module runs in a subprocess, ``python -m evener.launch.step_costs REQUEST``, and writes the
result as JSON into a file. ``REQUEST`` is JSON too; see `CostRequest`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evener.errors import EvenerError, EvenerWarning
from evener.launch.answer import error_fields, write_answer

if TYPE_CHECKING:
    from evener.devices import UsedDevice
    from evener.devices.spec import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRequest:
    """A request for the costs of a script's training step.

    Args:
        script: The path of the script.
        args: Its command line arguments.
        devices: A device spec; None for ``EVENER_DEVICES``, else all.
        batch_size: The most samples to measure; None for the batch of the script.
        gpu_names: Whether CPU devices appear as GPUs, where there is no GPU.
        remeasure: Whether layers are measured that were measured before.
        answer: The path of the file for the result.
    """

    script: str
    args: tuple[str, ...]
    devices: str | None
    batch_size: int | None
    gpu_names: bool
    remeasure: bool
    answer: str

    def to_json(self) -> str:
        """Return the request as the subprocess reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CostRequest:
        """Return the request that a text of `to_json` holds."""
        fields = json.loads(text)
        return cls(**{**fields, "args": tuple(fields["args"])})


def main() -> None:
    """Carry out the request on the command line."""
    request = CostRequest.from_json(sys.argv[1])
    try:
        _run(request)
    except EvenerError as error:
        traceback.print_exc()
        write_answer(request.answer, {"error": error_fields(error)})
    write_answer(request.answer, {"outcome": "ended"})


def _run(request: CostRequest) -> None:
    from evener.devices import use_devices
    from evener.devices.spec import spec_from
    from evener.engine.costs.strategy import costing_strategy
    from evener.launch.notes import Notes
    from evener.launch.script import read_script
    from evener.launch.session import Session

    script = read_script(request.script)
    _hold_to_cores_of_one_device(spec_from(request.devices, os.environ))
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


def _hold_to_cores_of_one_device(spec: DeviceSpec) -> None:
    """Let stand-ins be measured on as many cores as each has in a step of all of them.

    They lend their threads to each other: one that computes alone would take the cores of all.
    """
    if spec.kind == "cpu" and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[: max(1, len(cores) // spec.num_stand_ins)])


def _measured(
    request: CostRequest, traced: Any, used: Sequence[UsedDevice], batch_size: int
) -> dict[str, Any]:
    """Return the profile of a step, as `plan_subprocess` reads it."""
    from evener.engine.costs.identity import KnownDevices
    from evener.engine.costs.profile import profile_step
    from evener.profile.cache import MeasurementCache
    from evener.profile.serialise import profile_to_json

    known = KnownDevices(MeasurementCache(refresh=request.remeasure))
    # Nobody sees what this process prints.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EvenerWarning)
        profile, not_measured = profile_step(
            traced, used, batch_size, name=Path(request.script).name, known=known
        )
    return {
        "profile": profile_to_json(profile),
        "not_measured": not_measured,
        "taken": [one.to_fields() for one in known.taken],
        "warnings": [str(one.message) for one in caught if issubclass(one.category, EvenerWarning)],
    }


if __name__ == "__main__":
    main()
