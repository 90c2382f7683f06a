"""Which tensors differ by more than rounding; what differs is measured again, with other numbers.

A difference counts if it stays where all inputs are other ones: so a kink that rounding crossed is
left out. And if it is larger than what a change of the inputs by a few units in the last place
makes: so numbers that are rounding themselves are left out, such as the gradient of a bias before
a normalization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Arrays: TypeAlias = Sequence[np.ndarray]
Compute: TypeAlias = Callable[[Arrays], tuple[Arrays, Arrays]]
"""Inputs -> expected tensors, actual tensors."""

SMALLEST = 1e-3
"""A smaller difference, relative to the largest number of a tensor, is not said."""
_ROUNDINGS = 30
"""A difference is larger than so many units of the least precise dtype of the step."""
_RESPONSES = 30
"""And than so many times what the last places of the inputs change."""
_SHRUNK = 1e-2
_LAST_PLACES = 8
_FLOOR = 1e-6
"""Of the largest number among the tensors of a kind: less is rounding of what was cancelled."""


def is_inexact(array: np.ndarray) -> bool:
    """Return whether an array has floating-point or complex numbers."""
    return tf.as_dtype(array.dtype).is_floating or tf.as_dtype(array.dtype).is_complex


def find_differences(
    compute: Compute, inputs: Arrays, epsilon: float, kinds: Sequence[Any]
) -> dict[int, float]:
    """Return the numbers of the tensors that differ, with the relative difference.

    Args:
        compute: Computes both sides.
        inputs: What both are given.
        epsilon: The relative rounding of the least precise dtype in the step.
        kinds: Of each tensor; tensors of a kind have a floor in common.
    """
    tolerance = max(SMALLEST, _ROUNDINGS * epsilon)
    expected, actual = compute(inputs)
    found = _differing(expected, actual, tolerance, kinds)
    for seed in (1, 2):
        if not found:
            return {}
        others = compute(_changed(inputs, _SHRUNK, seed))
        remaining = _differing(*others, tolerance, kinds)
        found = {number: value for number, value in found.items() if number in remaining}
    for seed in (3, 4):
        if not found:
            return {}
        moved = compute(_changed(inputs, _LAST_PLACES * epsilon, seed))
        sides = list(zip((expected, actual), moved, strict=True))
        for number in list(found):
            noise = max(_gap(before[number], after[number]) for before, after in sides)
            if not _gap(expected[number], actual[number]) > _RESPONSES * noise:
                del found[number]
    return found


def _differing(
    expected: Arrays, actual: Arrays, tolerance: float, kinds: Sequence[Any]
) -> dict[int, float]:
    """Return the relative differences that are larger than a tolerance."""
    scales = [
        max(pair) for pair in zip(map(_magnitude, expected), map(_magnitude, actual), strict=True)
    ]
    largest: dict[Any, float] = {}
    for scale, kind in zip(scales, kinds, strict=True):
        largest[kind] = max(largest.get(kind, 0.0), scale)
    found: dict[int, float] = {}
    for number, (scale, kind) in enumerate(zip(scales, kinds, strict=True)):
        gap = _gap(expected[number], actual[number])
        if gap > max(tolerance * scale, _FLOOR * largest[kind]):
            found[number] = gap / scale if scale else gap
    return found


def _magnitude(array: np.ndarray) -> float:
    """Return the largest absolute number of an array that is finite."""
    if not is_inexact(array) or not array.size:
        return 0.0
    largest = float(np.abs(array).max())
    if not np.isfinite(largest):
        finite = array[np.isfinite(array)]
        largest = float(np.abs(finite).max()) if finite.size else 0.0
    return largest


def _gap(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest absolute difference; without end for unlike shapes, integers or nans."""
    if one.shape != other.shape:
        return float("inf")
    if not is_inexact(one):
        return 0.0 if np.array_equal(one, other) else float("inf")
    if not one.size:
        return 0.0
    with np.errstate(all="ignore"):
        gap = float(np.abs(one - other).max())
        if np.isfinite(gap):
            return gap
        finite = np.isfinite(one) & np.isfinite(other)
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
            return float("inf")
        return float(np.abs(one - other)[finite].max()) if finite.any() else 0.0


def _changed(inputs: Arrays, by: float, seed: int) -> list[np.ndarray]:
    """Return inputs whose floating-point numbers are nearer to 0 by up to a fraction of them."""
    random = np.random.default_rng(seed)
    changed = []
    for array in inputs:
        if is_inexact(array):
            factors = 1 - by * random.random(array.shape, np.float32)
            array = (array * factors).astype(array.dtype)
        changed.append(array)
    return changed
