"""Rounding of a step, measured on one device, and differences that it does not explain.

::

    one device     as it is ──────────────► expected ─┐
    one device     last places changed ───► noise     ├─► statistics of each tensor
    all devices    as it is ──────────────► actual   ─┘   actual beyond noise: a difference

Rounding has no direction, a fault has: three statistics of the difference are compared. The largest
number finds a wrong row, the root of the mean square finds many small ones, and the part along the
expected tensor finds a wrong factor that is smaller than the rounding of each number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from evener.checking.differences import gap, is_inexact, magnitude
from evener.checking.precision import ROUNDINGS

NUM_DISTURBED = 6
"""Runs on one device with other last places."""
_MARGIN = 8.0
_MARGIN_OF_HALVES = 4.0
"""Differences this many times the largest noise are more than rounding."""
_IS_HALF = 2.0**-12
_ALONE = 2
"""Numbers of a trained variable that may differ alone: the first update of Adam has the size of the
learning rate wherever a gradient is 0 but for rounding, with any sign."""
_SMALL = 8
"""Largest number of numbers of a tensor in which each counts."""
_FLOOR = 32.0
_FLOOR_OF_HALVES = 1.0
"""Least difference, in units of the rounding of the tensor's own dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Statistics of the difference of a tensor from the expected one.

    Attributes:
        largest: Largest difference; infinity for other shapes, exact numbers or nans.
        typical: Root of the mean square of the difference.
        along: Part of the difference along the expected tensor, of its length.
    """

    largest: float
    typical: float = 0.0
    along: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Tensor that differs by more than the rounding of the step.

    Attributes:
        name: Name of the tensor.
        by: Largest difference, relative to the largest number of the tensor.
        rounding: Largest difference that other last places cause, relative to the same number.
    """

    name: str
    by: float
    rounding: float


def moved(expected: np.ndarray, actual: np.ndarray, *, without_few: bool = False) -> Moved:
    """Return the statistics of a difference.

    Args:
        expected: Tensor.
        actual: Tensor of the same meaning.
        without_few: Whether the few largest numbers of the difference are left out.
    """
    largest = gap(expected, actual)
    if not np.isfinite(largest) or not largest:
        return Moved(largest=largest)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    before, after = expected.astype(wide).ravel(), actual.astype(wide).ravel()
    is_finite = np.isfinite(before) & np.isfinite(after)
    before, difference = before[is_finite], (after - before)[is_finite]
    if without_few and difference.size > _SMALL:
        kept = np.argsort(np.abs(difference))[:-_ALONE]
        before, difference = before[kept], difference[kept]
        largest = float(np.abs(difference[-1]))
        if not largest:
            return Moved(largest=0.0)
    # Of the largest number, so that squares neither overflow nor vanish.
    scale = float(np.abs(before).max()) or 1.0
    length = float(np.linalg.norm(before / scale))
    along = abs(np.vdot(before / scale, difference / scale)) / length if length else 0.0
    size = np.sqrt(difference.size)
    typical = largest * float(np.linalg.norm(difference / largest)) / size
    return Moved(largest=largest, typical=typical, along=float(along) * scale / size)


def is_beyond(
    found: Moved,
    noise: Sequence[Moved],
    expected: np.ndarray,
    *,
    held: float = 0.0,
    epsilon: float = ROUNDINGS[tf.float32],
) -> bool:
    """Return whether a difference is more than rounding.

    Args:
        found: Difference from the expected tensor.
        noise: Differences that other last places cause on one device.
        expected: Expected tensor.
        held: Largest number of the variable that the tensor is the change of; 0 for results.
        epsilon: Rounding of the least precise dtype that the step computes in.
    """
    if not is_inexact(expected):
        return found.largest > max((item.largest for item in noise), default=0.0)
    floor = _least(expected) * max(magnitude(expected), held)
    root = np.sqrt(max(expected.size, 1))
    limits = (
        (found.largest, [item.largest for item in noise], floor),
        (found.typical, [item.typical for item in noise], floor),
        (found.along, [item.along for item in noise], floor / root),
    )
    margin = _MARGIN if epsilon < _IS_HALF else _MARGIN_OF_HALVES
    return any(value > margin * max(values, default=0.0) + least for value, values, least in limits)


def _least(array: np.ndarray) -> float:
    """Return the least relative difference that counts in an array."""
    rounding = ROUNDINGS.get(tf.as_dtype(array.dtype), 2.0**-3)
    return rounding * (_FLOOR if rounding < _IS_HALF else _FLOOR_OF_HALVES)
