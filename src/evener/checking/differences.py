"""Differences of two arrays, absolute and relative."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_array(tensor: Any) -> np.ndarray:
    """Return a tensor, or an array, as an array; NumPy itself refuses one number of bfloat16."""
    return np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)


def is_inexact(array: np.ndarray) -> bool:
    """Return whether an array has floating-point or complex numbers."""
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float"))


def magnitude(array: np.ndarray) -> float:
    """Return the largest finite absolute number of an array; 0 if its numbers are exact."""
    if not is_inexact(array) or not array.size:
        return 0.0
    largest = float(np.abs(array).max())
    if not np.isfinite(largest):
        finite = array[np.isfinite(array)]
        largest = float(np.abs(finite).max()) if finite.size else 0.0
    return largest


def gap(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest absolute difference; infinity for other shapes, exact numbers or nans."""
    if expected.shape != actual.shape:
        return float("inf")
    if not is_inexact(expected):
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    if not expected.size:
        return 0.0
    with np.errstate(all="ignore"):
        largest = float(np.abs(expected - actual).max())
        if np.isfinite(largest):
            return largest
        finite = np.isfinite(expected) & np.isfinite(actual)
        if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
            return float("inf")
        return float(np.abs(expected - actual)[finite].max()) if finite.any() else 0.0


def relative_difference(expected: np.ndarray, actual: np.ndarray, least: float) -> float:
    """Return the largest difference of two arrays, relative to the largest number of the first.

    Args:
        expected: Array.
        actual: Array of the same meaning.
        least: Least number that a difference is divided by.

    Returns:
        The difference; for unequal exact numbers 1, for other shapes or nans infinity.
    """
    if expected.shape == actual.shape and not is_inexact(expected):
        return float(not np.array_equal(expected, actual))
    return gap(expected, actual) / max(magnitude(expected), least, float(np.finfo(np.float32).tiny))
