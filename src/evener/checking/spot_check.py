"""Result of a spot check: whether a few samples of a step agree with one device."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

from evener.errors import EvenerWarning, warn

_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCheck:
    """Result of the check of a step.

    Attributes:
        state: ``"agrees"``, ``"differs"`` or ``"not done"``.
        reason: Reason why it was not done, or an empty text.
        differences: Name and difference of every tensor that differs, relative to its largest
            number.
        num_samples: Number of samples that were computed.
        num_tensors: Number of tensors that were compared.
        seconds: Duration of the check, which runs beside the training.
    """

    state: Literal["agrees", "differs", "not done"]
    reason: str = ""
    differences: tuple[tuple[str, float], ...] = ()
    num_samples: int = 0
    num_tensors: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.state == "not done":
            return f"not done: {self.reason}"
        compared = f"{self.num_tensors} tensors of a step, {self.num_samples} samples"
        different = "; ".join(f"{name} by {by:.1e}" for name, by in self.differences)
        return f"{compared}: {different or 'no difference'}"


class NotDoneError(Exception):
    """Step or batch that cannot be checked; the text is the reason."""


def not_done(error: Exception) -> SpotCheck:
    """Return the result of a check that an error has ended."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_REASON]}"
    if isinstance(error, NotDoneError):
        reason = str(error)
    return SpotCheck(state="not done", reason=reason)


def warn_of_difference(result: SpotCheck) -> None:
    """Warn of the largest difference: ENG-089."""
    name, by = max(result.differences, key=lambda difference: difference[1])
    others = len(result.differences) - 1
    and_more = f", and {others} more" if others else ""
    with contextlib.suppress(EvenerWarning):
        warn(
            "ENG-089",
            f"A step on several devices differs from one device: {name}, by {by:.1e} of its "
            f"largest number{and_more}.",
            why=f"{result.num_samples} samples of a batch were computed in parts and as a whole. "
            "The difference is more than rounding, and stays with other numbers.",
            fix="Run the program on one device, or with verify=True to compare the whole first "
            "step. This is a fault of evener: please report it.",
        )
