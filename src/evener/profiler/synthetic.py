"""Synthetic values for the arguments of a task function, so that it can be called alone.

::

    floats     small random numbers; those of variables are positive
    integers   random below their limit if they index rows or classes; else 0, a valid index
    bools      True
    symbols    b and B are the number of samples, o is 0
    variables  new variables of the same shape, freed after the call
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.flops.sizes import shape_of
from evener.engine.partition.function_arguments import (
    Argument,
    InputArgument,
    NumberArgument,
    SumArgument,
)
from evener.graph.counts import numbers
from evener.graph.dims import symbol
from evener.graph.nodes import Tensor
from evener.profiler.variables import LayerVariable

_SCALE = 0.1


class NotMeasurableError(Exception):
    """Error: a function cannot be called with synthetic values; the message gives the reason."""


class Values:
    """Synthetic values of arguments; it keeps the variables among them alive.

    Args:
        num_samples: Samples of the micro-batch.
        variables: Variables by their resource arguments of the step.
        limits: Exclusive upper limits of integer tensors; see `index_limits`.
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
            return number
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
            raise NotMeasurableError(f"it takes a tensor of dtype {tensor.dtype.name}")
        if shape is None:
            raise NotMeasurableError("it takes a tensor of unknown rank")
        sizes = numbers(shape, self._num_samples)
        if tensor in self._limits:
            limit = self._limits[tensor]
            made = tf.random.stateless_uniform(sizes, (1, 2), 0, limit, tf.int32)
            return tf.cast(made, tensor.dtype)
        return _filled(sizes, tensor.dtype)

    def _variable(self, handle: Tensor) -> tf.Variable:
        if handle not in self._described:
            raise NotMeasurableError("it uses a resource that is not a variable")
        if handle not in self._variables:
            variable = self._described[handle]
            value = _filled(variable.shape, variable.dtype)
            self._variables[handle] = tf.Variable(
                tf.abs(value) if variable.dtype.is_floating else value, trainable=False
            )
        return self._variables[handle]


def _filled(shape: Sequence[int], dtype: tf.DType) -> Any:
    if dtype.is_floating:
        made = tf.random.stateless_normal(shape, seed=(1, 2), stddev=_SCALE)
        return tf.cast(made, dtype)
    if dtype == tf.bool:
        return tf.ones(shape, dtype)
    return tf.zeros(shape, dtype)
