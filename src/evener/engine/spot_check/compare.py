"""Which tensors differ by more than rounding: measured again, with other numbers, before it is said.

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
        moved, _ = compute(_changed(inputs, _LAST_PLACES * epsilon, seed))
        responses = _differences(expected, moved, kinds)
        found = {k: value for k, value in found.items() if value > _RESPONSES * responses[k]}
    return found


def _differing(
    expected: Arrays, actual: Arrays, tolerance: float, kinds: Sequence[Any]
) -> dict[int, float]:
    differences = _differences(expected, actual, kinds)
    return {number: value for number, value in enumerate(differences) if not value <= tolerance}


def _differences(expected: Arrays, actual: Arrays, kinds: Sequence[Any]) -> list[float]:
    largest: dict[Any, float] = {}
    for array, kind in zip(expected, kinds, strict=True):
        largest[kind] = max(largest.get(kind, 0.0), _magnitude(array))
    pairs = zip(expected, actual, kinds, strict=True)
    return [_difference(one, other, _FLOOR * largest[kind]) for one, other, kind in pairs]


def _magnitude(array: np.ndarray) -> float:
    if not is_inexact(array) or not array.size:
        return 0.0
    with np.errstate(all="ignore"):
        largest = float(np.abs(array).max())
        if not np.isfinite(largest):
            finite = array[np.isfinite(array)]
            largest = float(np.abs(finite).max()) if finite.size else 0.0
    return largest


def _difference(expected: np.ndarray, actual: np.ndarray, floor: float) -> float:
    """Return the largest difference beyond a floor, relative to the largest number."""
    if expected.shape != actual.shape:
        return float("inf")
    if not is_inexact(expected):
        return float(not np.array_equal(expected, actual)) and float("inf")
    if not expected.size:
        return 0.0
    with np.errstate(all="ignore"):
        gap = float(np.abs(expected - actual).max())
        if not np.isfinite(gap):
            finite = np.isfinite(expected)
            if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
                return float("inf")
            gap = float(np.abs(expected - actual)[finite].max()) if finite.any() else 0.0
    scale = _magnitude(expected)
    return 0.0 if gap <= floor else gap / scale if scale else float("inf")


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
