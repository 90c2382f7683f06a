"""Traces of a step, one for each kind of arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from evener._tf_private.shapes import noticing_unknown_sizes
from evener.engine.partition import PartitionedStep
from evener.strategy.arguments import Arguments
from evener.strategy.prepared import PreparedStep

Trace: TypeAlias = Callable[[Arguments, Sequence[tf.TensorSpec], int | None], PreparedStep]
"""Function of arguments, specs of their tensors and the number of samples, if it is fixed."""


class StepTraces:
    """Traces of a step, one for each kind of arguments.

    Args:
        when_traced: Function that is called with every partitioned step that is kept, or None.
        is_retraced: Whether `tf.function` would trace the step again for a batch of another size.
    """

    def __init__(
        self, when_traced: Callable[[PartitionedStep], object] | None, *, is_retraced: bool
    ) -> None:
        self._when_traced = when_traced
        self._is_retraced = is_retraced
        self._traces: dict[Any, PreparedStep] = {}
        self._needs_sizes: set[Any] = set()

    def values(self) -> Collection[PreparedStep]:
        """Return all traces."""
        return self._traces.values()

    def find(self, arguments: Arguments, make: Trace) -> PreparedStep:
        """Return a trace that serves arguments.

        Args:
            arguments: Arguments of a call.
            make: Function that traces the step, if no trace serves them.
        """
        key = arguments.key()
        trace = self._traces.get(key)
        specs = _specs(arguments, None if trace is None else trace.specs)
        if trace is not None and trace.serves(specs):
            return trace
        num_samples = arguments.num_samples
        fixed_key, fixed_specs = (key, num_samples), _fixed_specs(arguments)
        if fixed_key in self._traces and self._traces[fixed_key].serves(fixed_specs):
            return self._traces[fixed_key]
        symbolic: Exception | None = None
        if num_samples is None or key not in self._needs_sizes:
            try:
                with noticing_unknown_sizes() as sizes:
                    trace = make(arguments, specs, None)
                # Each trace for another size draws random numbers of its own.
                is_traced_again = self._is_retraced and trace.draws_from_seeds()
                if num_samples is None or not (sizes.is_asked or is_traced_again):
                    return self._keep(key, trace)
            except Exception as error:
                if num_samples is None:
                    raise
                symbolic = error
        # The step asks for the number of samples while it is traced: `len(x)`, `x.shape[0]`.
        try:
            trace = make(arguments, fixed_specs, num_samples)
        except Exception as error:
            # The first attempt says no more, if it failed in the same way.
            raise error from None if type(error) is type(symbolic) else symbolic
        self._needs_sizes.add(key)
        return self._keep(fixed_key, trace)

    def _keep(self, key: Any, trace: PreparedStep) -> PreparedStep:
        self._traces[key] = trace
        if self._when_traced is not None:
            self._when_traced(trace.partitioned)
        return trace


def _specs(arguments: Arguments, before: Sequence[tf.TensorSpec] | None) -> list[tf.TensorSpec]:
    """Return the specs of tensors; sizes that have changed since the last trace are left open."""
    specs = []
    for index, (tensor, axis) in enumerate(zip(arguments.tensors, arguments.axes, strict=True)):
        shape = tensor.shape.as_list() if tensor.shape.rank is not None else None
        if shape is not None and axis is not None:
            shape[axis] = None
        if shape is not None and before is not None and before[index].shape.rank == len(shape):
            old = before[index].shape.as_list()
            shape = [
                size if size == known else None for size, known in zip(shape, old, strict=True)
            ]
        untyped: Any = shape
        specs.append(tf.TensorSpec(untyped, tensor.dtype))
    return specs


def _fixed_specs(arguments: Arguments) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in arguments.tensors]
