"""Questions to a subprocess: JSON on its command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from evener.errors import PlacementError


class TargetError(PlacementError):
    """The target of an audit is invalid: wrong usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """A program to run up to its first training step, and the question about that step.

    Args:
        question: ``"audit"`` for its placement, ``"costs"`` for seconds and bytes of its layers,
            ``"memory"`` for the bytes alone, ``"datasheets"`` for the bytes, and seconds that
            follow from speeds.
        target: Path of a script, name of a module, or ``"module:function"``.
        kind: Kind of the target; only an audit takes a function.
        args: Command line arguments of the program.
        devices: Device spec. With None the program of an audit configures TensorFlow itself;
            costs are measured on ``EVENER_DEVICES``, else on all devices.
        gpu_names: Whether CPU devices appear as GPUs, where there is no GPU.
        batch_size: Size for None in an input signature, in an audit; for costs the most samples
            to measure, by default the batch of the script.
        assume_gpus: Whether to assume GPUs, as in `evener.audit`.
        remeasure: Whether layers are measured that were measured before.
        speeds: Speed of each type of device that is not here, as the fields of a
            `evener.profiler.device_speed.DeviceSpeed`, for ``"datasheets"``.
        answer: Path of the file for the answer, which `evener.subprocess.answer.ask` chooses.
    """

    question: Literal["audit", "costs", "memory", "datasheets"]
    target: str
    kind: Literal["script", "module", "function"] = "script"
    args: tuple[str, ...] = ()
    devices: str | None = None
    gpu_names: bool = True
    batch_size: int | None = None
    assume_gpus: bool = False
    remeasure: bool = False
    speeds: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    answer: str = ""

    def to_json(self) -> str:
        """Return the request as the subprocess reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StepRequest:
        """Return the request that a text of `to_json` holds."""
        fields = json.loads(text)
        return cls(**{**fields, "args": tuple(fields["args"])})
