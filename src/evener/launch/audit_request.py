"""The request that `evener audit` sends to its subprocess."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from evener.errors import PlacementError


class TargetError(PlacementError):
    """The target of an audit is invalid: wrong usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """A request for an audit.

    Args:
        target: The path of a script, or ``"module:function"``.
        args: The command line arguments of the script.
        is_script: Whether the target is a script.
        devices: A device spec; None to let the program configure TensorFlow.
        meant_for: ``"gpu"`` or None, as in `evener.audit`.
        batch: The size for None in an input signature; None if it is not given.
        gpu_names: Whether CPU devices appear as GPUs, where there is no GPU.
        answer: The path of the file for the result.
    """

    target: str
    args: tuple[str, ...]
    is_script: bool
    devices: str | None
    meant_for: Literal["gpu"] | None
    batch: int | None
    gpu_names: bool = False
    answer: str

    def to_json(self) -> str:
        """Return the request as the subprocess reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AuditRequest:
        """Return the request that a text of `to_json` holds."""
        fields = json.loads(text)
        return cls(**{**fields, "args": tuple(fields["args"])})
