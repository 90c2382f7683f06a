"""Variables before and after a step, and how much two runs of the same step differ."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.tensors import is_eager_tensor
from evener.checking.differences import as_array, magnitude, relative_difference

ROUNDING = 1e-4
"""A larger relative difference of float32 numbers is judged by what rounding does to the step."""
_ROUNDING_OF_HALF = 3e-2
_SENSITIVITY = 30.0
_SMALLEST = 1e-3


class State:
    """The values of all variables of the program at one moment.

    Args:
        others: Variables that are not the program's.
    """

    def __init__(self, others: Sequence[tf.Variable] = ()) -> None:
        left_out = {id(variable) for variable in others}
        self.variables = [variable for variable in all_variables() if id(variable) not in left_out]
        self._values = [variable.numpy() for variable in self.variables]

    def restore(self) -> None:
        """Give the variables their values back."""
        self.assign(self._values)

    def assign(self, values: Sequence[np.ndarray]) -> None:
        """Give the variables other values."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def now(self) -> list[np.ndarray]:
        """Return the values of the same variables at this moment."""
        return [variable.numpy() for variable in self.variables]

    def disturb(self) -> None:
        """Give the variables their values back, each number changed by one rounding."""
        generator = np.random.default_rng(0)
        values = []
        for value in self._values:
            if value.dtype in (np.float32, np.float64):
                to = np.where(generator.random(value.shape) < 0.5, -np.inf, np.inf)
                value = np.nextafter(value, to.astype(value.dtype))
            values.append(np.asarray(value))
        self.assign(values)


def all_variables() -> list[tf.Variable]:
    """Return all variables that have a value, of strategies or of nobody."""
    return [found for found in gc.get_objects() if _has_value(found)]


def _has_value(value: Any) -> bool:
    # isinstance() would ask lazily imported modules, which are among all objects, for their class.
    return (
        issubclass(type(value), tf.Variable)
        and is_eager_tensor(getattr(value, "handle", None))
        and bool(value.is_initialized())
    )


def numbers_of(tensors: Sequence[Any]) -> list[np.ndarray]:
    """Return flat tensors as arrays; those that are no numbers are left out."""
    flat = tf.nest.flatten(list(tensors), expand_composites=True)
    return [as_array(tensor) for tensor in flat if tensor.dtype not in (tf.resource, tf.variant)]


def differences(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> list[float]:
    """Return the relative difference of each array, in units of the rounding of its type."""
    if len(expected) != len(actual):
        return [float("inf")]
    least = _SMALLEST * max((magnitude(array) for array in expected), default=0.0)
    found = []
    for array, other in zip(expected, actual, strict=True):
        if array.dtype != other.dtype:
            found.append(float("inf"))
            continue
        is_half = array.dtype.itemsize == 2 and magnitude(array) > 0
        found.append(
            relative_difference(array, other, least) / (_ROUNDING_OF_HALF if is_half else ROUNDING)
        )
    return found


def is_rounding(found: Sequence[float], disturbed: Sequence[float] | None = None) -> bool:
    """Return whether differences are rounding.

    Args:
        found: Differences of two runs.
        disturbed: Differences of two runs of which the second began with numbers changed by one
            rounding; None to judge by the size alone.
    """
    if disturbed is None:
        return all(value <= 1 for value in found)
    if len(found) != len(disturbed):
        return False
    pairs = zip(found, disturbed, strict=True)
    return all(value <= 1 + _SENSITIVITY * other for value, other in pairs)
