"""Position of a training: the point at which a checkpoint was taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Point of a training at which a checkpoint was taken.

    Attributes:
        step: Number of steps since the start of the training, from 0.
        epoch: Index of the epoch, from 0.
        position: Value of the program, such as its step in the epoch; as JSON has it.
    """

    step: int
    epoch: int = 0
    position: Any = None
