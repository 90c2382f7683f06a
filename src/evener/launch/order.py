"""What `evener audit` asks a process of its own to audit."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from evener.errors import PlacementError


class TargetError(PlacementError):
    """What to audit was not named in a way that can be understood: wrong usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to audit.

    Args:
        target: The path of a script, or ``"module:function"``.
        args: What the script finds on its command line.
        is_script: Which of the two the target is.
        devices: A device spec; None to leave TensorFlow to the program.
        meant_for: ``"gpu"`` or None.
        batch: What stands for unknown sizes of an input signature; None if nothing does.
        gpu_names: Whether CPU devices answer as GPUs, where there is no GPU.
        answer: The path of the file for what was found.
    """

    target: str
    args: tuple[str, ...]
    is_script: bool
    devices: str | None
    meant_for: Literal["gpu"] | None
    batch: int | None
    gpu_names: bool = False
    answer: str


def order_text(order: Order) -> str:
    """Return an order as `main` reads it."""
    return json.dumps(asdict(order))
