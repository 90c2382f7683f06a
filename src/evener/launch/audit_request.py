"""The request that `evener audit` sends to its subprocess."""

from __future__ import annotations

from dataclasses import dataclass

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
        assume_gpus: Whether to assume GPUs, as in `evener.audit`.
        batch_size: Size for None in an input signature; None if it is not given.
        gpu_names: Whether CPU devices appear as GPUs, where there is no GPU.
    """

    target: str
    is_script: bool
    devices: str | None
    assume_gpus: bool
    batch_size: int | None
    gpu_names: bool = False
