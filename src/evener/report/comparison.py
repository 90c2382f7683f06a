"""Differences of two trained models: weights, losses and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from evener.base.notebook import ShownAsText
from evener.base.terminal import text_of

DEVICE_LOGS = ("/share", "/busy_seconds", "/waiting_seconds", "/memory_bytes")
"""The suffixes of the logs that `Progress` adds for each device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The largest difference of the weights, of a loss or of a metric."""

    what: str  # Compared quantity: ``"weights"``, or the name of a loss or metric
    # The largest relative difference, 0 or more; infinite if the two cannot be compared, because a
    # shape or a length differs or one is missing
    value: float
    where: str  # Weight or epoch of the largest difference; ``"-"`` if there is none
    num_compared: int  # Number of values that were compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(ShownAsText):
    """The largest differences of two trained models.

    Args:
        differences: Difference of the weights, then of each loss and metric by name.
    """

    differences: tuple[Difference, ...]

    @property
    def largest(self) -> float:
        """The largest of all differences; infinite if there was nothing to compare."""
        return max((d.value for d in self.differences), default=float("inf"))

    def within(self, tolerance: float) -> bool:
        """Return whether no difference is above a tolerance."""
        return self.largest <= tolerance

    def table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("of", no_wrap=True)
        table.add_column("relative difference", justify="right", no_wrap=True)
        table.add_column("largest at", overflow="fold")
        table.add_column("of numbers", justify="right")
        for difference in self.differences:
            table.add_row(
                Text(difference.what),
                Text(f"{difference.value:.1e}"),
                Text(difference.where),
                Text(f"{difference.num_compared:,}"),
            )
        return table

    def __str__(self) -> str:
        text = text_of(lambda console: console.print(self.table()))
        return "\n".join(line for line in text.splitlines() if line)


def compare(
    *,
    weights: tuple[Sequence[Any], Sequence[Any]],
    histories: tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]],
    names: Sequence[str] = (),
) -> Comparison:
    """Compare two trained models by their weights and by their histories.

    Args:
        weights: The arrays of the reference and of the other, in the same order.
        histories: The value of every loss and metric by epoch, as ``model.fit`` returns them
            in ``history.history``, of the reference and of the other. The device logs of
            `Progress` are ignored.
        names: Names of the weights; without them, their numbers are reported.

    Returns:
        The largest differences.

    >>> same = {"loss": [0.5, 0.25]}
    >>> compare(weights=([[1.0, 2.0]], [[1.0, 2.002]]), histories=(same, same)).largest
    0.001
    """
    reference, other = histories
    # Device logs measure the machine, not the model.
    logs = dict.fromkeys(name for name in [*reference, *other] if not name.endswith(DEVICE_LOGS))
    return Comparison(
        differences=(
            compare_weights(*weights, names=names),
            *(compare_logs(name, reference.get(name), other.get(name)) for name in logs),
        )
    )


def compare_weights(
    reference: Sequence[Any], other: Sequence[Any], *, names: Sequence[str] = ()
) -> Difference:
    if len(reference) != len(other):
        where = f"{len(reference)} arrays and {len(other)}"
        return Difference(what="weights", value=float("inf"), where=where, num_compared=0)
    num_compared = sum(int(np.size(array)) for array in reference)
    names = names or [f"array {number}" for number in range(len(reference))]
    return _largest("weights", reference, other, names, num_compared)


def compare_logs(
    name: str, reference: Sequence[float] | None, other: Sequence[float] | None
) -> Difference:
    if reference is None or other is None or len(reference) != len(other):
        where = "not logged by both" if reference is None or other is None else "other epochs"
        return Difference(what=name, value=float("inf"), where=where, num_compared=0)
    epochs = [f"epoch {number + 1}" for number in range(len(reference))]
    return _largest(name, reference, other, epochs, len(reference))


def _largest(
    what: str, reference: Sequence[Any], other: Sequence[Any], names: Sequence[str], count: int
) -> Difference:
    values = [_relative(a, b) for a, b in zip(reference, other, strict=True)]
    worst = int(np.argmax(values)) if values else 0
    value = values[worst] if values else 0.0
    where = names[worst] if value else "-"
    return Difference(what=what, value=value, where=where, num_compared=count)


def _relative(reference: Any, other: Any) -> float:
    a, b = np.asarray(reference, dtype="float64"), np.asarray(other, dtype="float64")
    if a.shape != b.shape:
        return float("inf")
    if np.array_equal(a, b, equal_nan=True):
        return 0.0
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    scale = float(np.abs(a).max())
    largest = float(np.abs(a - b).max())
    # Further digits are beyond the precision of float32.
    return float(f"{largest / scale:.6g}") if scale else float("inf")
