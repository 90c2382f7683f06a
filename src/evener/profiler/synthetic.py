"""Values for the arguments of a task's function, so that it can be called alone.

::

    floats     small random numbers; those of variables are positive
    integers   below the number of rows or classes that they name; else 0, a valid index
    bools      True
    symbols    b and B are the number of samples, o is 0
    variables  new ones of the same size, which are freed with the call
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.flops.sizes import numbers, shape_of
from evener.engine.partition.functions import (
    Argument,
    InputArgument,
    NumberArgument,
    SumArgument,
)
from evener.engine.trace.dims import symbol
from evener.engine.trace.graph import Tensor
from evener.profiler.variables import LayerVariable

_SCALE = 0.1


class NotMeasurableError(Exception):
    """A function cannot be called with made-up values; the message says why."""


class Values:
    """Makes the values of arguments, and keeps the variables that it makes for them.

    Args:
        num_samples: The samples of the one part.
        variables: By the arguments of the step that stand for them.
        limits: What integer tensors must not reach; see `index_limits`.
    """

    def __init__(
        self,
        num_samples: int,
        variables: Mapping[Tensor, LayerVariable],
        limits: Mapping[Tensor, int] | None = None,
    ) -> None:
        self._limits = limits or {}
        self._num_samples = num_samples
        self._described = variables
        self._made: dict[Tensor, Any] = {}
        self._variables: dict[Tensor, tf.Variable] = {}

    def of(self, argument: Argument) -> Any:
        """Return the value of an argument.

        Raises:
            NotMeasurableError: If no value can be made.
        """
        if isinstance(argument, NumberArgument):
            (number,) = numbers([symbol(argument.name)], self._num_samples)
            return tf.constant(number, tf.int32)
        assert not isinstance(argument, InputArgument)  # of functions within those of tasks
        tensor = argument.tensor
        if tensor not in self._made:
            shape = tensor.shape
            if not isinstance(argument, SumArgument):
                shape = shape_of(tensor, argument.state)
            self._made[tensor] = self._make(tensor, shape)
        return self._made[tensor]

    def _make(self, tensor: Tensor, shape: Any) -> Any:
        if tensor.dtype == tf.resource:
            return self._variable(tensor).handle
        if tensor.dtype in (tf.variant, tf.string):
            raise NotMeasurableError(f"it is given a tensor of dtype {tensor.dtype.name}")
        if shape is None:
            raise NotMeasurableError("it is given a tensor whose rank is not known")
        sizes = numbers(shape, self._num_samples)
        if tensor in self._limits:
            limit = self._limits[tensor]
            made = tf.random.stateless_uniform(sizes, (1, 2), 0, limit, tf.int32)
            return tf.cast(made, tensor.dtype)
        return _filled(sizes, tensor.dtype)

    def _variable(self, handle: Tensor) -> tf.Variable:
        if handle not in self._described:
            raise NotMeasurableError("it uses a resource that is no variable")
        if handle not in self._variables:
            one = self._described[handle]
            value = _filled(one.shape, one.dtype)
            self._variables[handle] = tf.Variable(
                tf.abs(value) if one.dtype.is_floating else value, trainable=False
            )
        return self._variables[handle]


def _filled(shape: Sequence[int], dtype: tf.DType) -> Any:
    if dtype.is_floating:
        made = tf.random.stateless_normal(shape, seed=(1, 2), stddev=_SCALE)
        return tf.cast(made, dtype)
    if dtype == tf.bool:
        return tf.ones(shape, dtype)
    return tf.zeros(shape, dtype)
