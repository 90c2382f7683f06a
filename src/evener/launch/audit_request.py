"""The request that `evener audit` sends to its subprocess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evener.errors import PlacementError
from evener.launch.request import SubprocessRequest


class TargetError(PlacementError):
    """The target of an audit is invalid: wrong usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest(SubprocessRequest):
    """A request for an audit.

    Args:
        target: The path of a script, or ``"module:function"``.
        is_script: Whether the target is a script.
        devices: A device spec; None to let the program configure TensorFlow.
        meant_for: ``"gpu"`` or None, as in `evener.audit`.
        batch: The size for None in an input signature; None if it is not given.
        gpu_names: Whether CPU devices appear as GPUs, where there is no GPU.
    """

    target: str
    is_script: bool
    devices: str | None
    meant_for: Literal["gpu"] | None
    batch: int | None
    gpu_names: bool = False
