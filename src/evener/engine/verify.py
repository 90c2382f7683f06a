"""The first step, also computed on one device: how much do the results differ?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from evener.errors import warn

LARGEST_ROUNDING = 1e-4
"""A larger relative difference in a float32 step is more than rounding."""
_SMALLEST = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How a partitioned step differs from the same step on one device.

    Attributes:
        results: The largest difference of what the step returns, relative to the largest number
            of each tensor.
        variables: The same of the variables after the step.
    """

    results: float
    variables: float

    def __str__(self) -> str:
        return (
            "Verified against one device: results differ by at most "
            f"{self.results:.1e}, variables by {self.variables:.1e} (relative)."
        )


def verify(
    plain: Callable[[], Any],
    partitioned: Callable[[], Any],
    variables: Sequence[tf.Variable],
) -> tuple[Any, Verification]:
    """Run a step on one device, put its variables back, and run it on all devices.

    Args:
        plain: Runs it on one device.
        partitioned: Runs it on all devices.
        variables: What the step may change.

    Returns:
        What the partitioned step returns, and the differences.
    """
    before = [variable.read_value() for variable in variables]
    expected = [np.asarray(one) for one in _tensors(plain())]
    after = [variable.numpy() for variable in variables]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    results = partitioned()
    found = Verification(
        results=_largest(expected, [np.asarray(one) for one in _tensors(results)]),
        variables=_largest(after, [variable.numpy() for variable in variables]),
    )
    print(f"evener: {found}")
    if not max(found.results, found.variables) <= LARGEST_ROUNDING:
        warn(
            "ENG-080",
            "The first step differs from the same step on one device. " + str(found),
            why="The difference is more than rounding, unless the step is very sensitive to it "
            "or draws from TensorFlow's stateful random generators. (The first update of Adam has "
            "the size of the learning rate wherever a gradient is 0 but for rounding.)",
            fix="Run the step in float64 to tell. If the difference stays, this is a fault of "
            "evener: please report it, with step.report().",
        )
    return results, found


def _tensors(results: Any) -> list[Any]:
    leaves = tf.nest.flatten(results, expand_composites=True)
    return [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]


def _largest(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    # Numbers that are 0 but for rounding, such as the gradient of a bias before a normalisation,
    # are no measure of themselves.
    least = _SMALLEST * max((_magnitude(one) for one in expected), default=0.0)
    pairs = zip(expected, actual, strict=True)
    return max((_difference(one, other, least) for one, other in pairs), default=0.0)


def _is_inexact(array: np.ndarray) -> bool:
    return array.dtype.kind in "fc" or array.dtype.name == "bfloat16"


def _magnitude(array: np.ndarray) -> float:
    if not _is_inexact(array):
        return 0.0
    numbers = np.abs(array.astype(np.complex128))
    return float(numbers[np.isfinite(numbers)].max(initial=0.0))


def _difference(one: np.ndarray, other: np.ndarray, least: float) -> float:
    if one.shape != other.shape:
        return float("inf")
    if not _is_inexact(one):
        return float(not np.array_equal(one, other))
    left, right = one.astype(np.complex128), other.astype(np.complex128)
    finite = np.isfinite(left)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(_magnitude(one), least, float(np.finfo(np.float32).tiny))
    return float(np.abs(left - right)[finite].max()) / scale
