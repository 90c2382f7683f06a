"""Tensors that differ by more than rounding, found by computing them several times.

A difference counts if it stays when all inputs are changed: rounding that crosses a kink does not.
And if it exceeds the change that a few units in the last place of the inputs cause: numbers that
are rounding themselves, such as the gradient of a bias before a normalization, do not differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from evener.checking.differences import gap, is_inexact, magnitude

Arrays: TypeAlias = Sequence[np.ndarray]
Compute: TypeAlias = Callable[[Arrays], tuple[Arrays, Arrays]]
"""Inputs -> expected tensors, actual tensors."""

SMALLEST = 1e-3
"""Least difference that is reported, relative to the largest number of a tensor."""
_ROUNDINGS = 30
"""Least difference, in units of the least precise dtype of the step."""
_RESPONSES = 30
"""Least difference, in changes that the last places of the inputs cause."""
_SHRUNK = 1e-2
_LAST_PLACES = 8
_FLOOR = 1e-6
"""Least difference, as a part of the largest number of all tensors of a kind: sums that cancel
round by that much."""


def find_differences(
    compute: Compute, inputs: Arrays, epsilon: float, kinds: Sequence[Any]
) -> dict[int, float]:
    """Return the numbers of the tensors that differ, with the relative difference.

    Args:
        compute: Function of inputs that computes both sides.
        inputs: Inputs of both sides.
        epsilon: Relative rounding of the least precise dtype in the step.
        kinds: Kind of each tensor; tensors of a kind have a floor in common.
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
            noise = max(gap(before[number], after[number]) for before, after in sides)
            if not gap(expected[number], actual[number]) > _RESPONSES * noise:
                del found[number]
    return found


def _differing(
    expected: Arrays, actual: Arrays, tolerance: float, kinds: Sequence[Any]
) -> dict[int, float]:
    """Return the relative differences that are larger than a tolerance."""
    scales = [
        max(pair) for pair in zip(map(magnitude, expected), map(magnitude, actual), strict=True)
    ]
    largest: dict[Any, float] = {}
    for scale, kind in zip(scales, kinds, strict=True):
        largest[kind] = max(largest.get(kind, 0.0), scale)
    found: dict[int, float] = {}
    for number, (scale, kind) in enumerate(zip(scales, kinds, strict=True)):
        by = gap(expected[number], actual[number])
        if by > max(tolerance * scale, _FLOOR * largest[kind]):
            found[number] = by / scale if scale else by
    return found


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
