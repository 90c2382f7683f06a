"""Traces of a step, and those that the program's own function would have in their place.

`tf.function` traces a function for each kind of arguments: for each size of a batch, or, with a
signature or relaxed shapes, for many. Each of its traces has random streams of its own. Here, one
trace serves many sizes, so that it may serve several traces of the program, which keep their
streams apart::

    batches           of the program       here               streams
    [8, 3, 4]         trace A              [B, 3, 4]          A 0
    [8, 5, 4]         trace B              [B, s, 4]          B 0
    [8, 3, 4]         trace A              [B, 3, 4]          A 1
    [5, 5, 4]         trace C              [B, s, 4]          C 0

A step that computes another thing for a size that is not known, or draws from kernels that keep
their count for themselves, is traced as the program would trace it, and serves that trace alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from evener._tf_private.shapes import noticing_unknown_sizes
from evener.engine.partition import PartitionedStep
from evener.engine.trace.draws import StreamState
from evener.strategy.arguments import Arguments
from evener.strategy.prepared import PreparedStep

Trace: TypeAlias = Callable[[Arguments, Sequence[tf.TensorSpec], int | None], PreparedStep]
"""Function of arguments, specs of their tensors and the number of samples, if it is fixed."""


class ProgramTrace:
    """One trace that the program's function would have.

    Attributes:
        streams: Where its random streams are.
        steps: What runs in its place, by kind of arguments.
    """

    def __init__(self) -> None:
        self.streams = StreamState()
        self.steps: dict[Any, PreparedStep] = {}


class StepTraces:
    """Traces of a step, one for each kind of arguments.

    Args:
        when_traced: Function that is called with every partitioned step that is kept, or None.
    """

    def __init__(self, when_traced: Callable[[PartitionedStep], object] | None) -> None:
        self._when_traced = when_traced
        self._traces: dict[Any, PreparedStep] = {}
        self._all: dict[PreparedStep, None] = {}
        self._needs_sizes: set[Any] = set()
        self._of_program: dict[Any, ProgramTrace] = {}

    def values(self) -> list[PreparedStep]:
        """Return all traces."""
        return list(self._all)

    def of_program(self, key: Any) -> ProgramTrace:
        """Return a trace of the program's function.

        Args:
            key: What stands for it.
        """
        return self._of_program.setdefault(key, ProgramTrace())

    def find(
        self,
        arguments: Arguments,
        program: ProgramTrace,
        shapes: Callable[[], Sequence[tf.TensorShape]],
        make: Trace,
    ) -> PreparedStep:
        """Return a trace that serves arguments.

        Args:
            arguments: Arguments of a call.
            program: The trace of the program's function that serves them.
            shapes: Function that returns the shapes of the tensors in that trace.
            make: Function that traces the step, if no trace serves them.
        """
        key = arguments.key(), tf.executing_eagerly()
        step = program.steps.get(key)
        if step is not None:
            return step
        step = self._found(key, arguments, program, shapes(), make)
        # In a graph, each call has kernels and streams of its own.
        if tf.executing_eagerly() or not step.draws_from_seeds():
            program.steps[key] = step
        if step not in self._all:
            self._all[step] = None
            if self._when_traced is not None:
                self._when_traced(step.partitioned)
        return step

    def _found(
        self,
        key: Any,
        arguments: Arguments,
        program: ProgramTrace,
        shapes: Sequence[tf.TensorShape],
        make: Trace,
    ) -> PreparedStep:
        """Return the trace for all sizes, unless the step needs those of the program's trace."""
        general = self._traces.get(key)
        specs = _specs(arguments, shapes, None if general is None else general.specs)
        if general is not None and general.serves(specs):
            return general
        # What nobody knows here, the program does not know either.
        is_own = [spec.shape.as_list() for spec in specs] == [
            None if shape.rank is None else shape.as_list() for shape in shapes
        ]
        symbolic: Exception | None = None
        if is_own or key not in self._needs_sizes:
            try:
                with noticing_unknown_sizes() as sizes:
                    step = make(arguments, specs, None)
                if tf.executing_eagerly() and step.draws_from_seeds():
                    is_asked = True
                else:
                    is_asked = sizes.is_asked and not is_own
                if not is_asked:
                    if tf.executing_eagerly() or not step.draws_from_seeds():
                        self._traces[key] = step
                    return step
            except Exception as error:
                if is_own:
                    raise
                symbolic = error
        # The step asks for sizes while it is traced, as `len(x)`, or has streams of its own.
        alone = arguments.with_shapes(shapes)
        key_alone = alone.key(), "alone"
        if key_alone not in program.steps:
            own = [
                tf.TensorSpec(shape, tensor.dtype)
                for shape, tensor in zip(shapes, arguments.tensors, strict=True)
            ]
            try:
                program.steps[key_alone] = make(alone, own, _num_samples(alone, shapes))
            except Exception as error:
                # The first attempt says no more, if it failed in the same way.
                raise error from None if type(error) is type(symbolic) else symbolic
        self._needs_sizes.add(key)
        return program.steps[key_alone]


def _specs(
    arguments: Arguments,
    shapes: Sequence[tf.TensorShape],
    before: Sequence[tf.TensorSpec] | None,
) -> list[tf.TensorSpec]:
    """Return the specs of tensors; sizes that have changed since the last trace are left open."""
    specs = []
    triples = zip(arguments.tensors, shapes, arguments.axes, strict=True)
    for index, (tensor, known, axis) in enumerate(triples):
        shape = (
            (tensor.shape if known.rank is None else known).as_list()
            if tensor.shape.rank is not None
            else None
        )
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


def _num_samples(arguments: Arguments, shapes: Sequence[tf.TensorShape]) -> int | None:
    """Return the samples of all batches of a trace of the program; None for batches of any size."""
    pairs = zip(shapes, arguments.axes, strict=True)
    sizes: list[int | None] = [shape[axis] for shape, axis in pairs if axis is not None]
    return next((size for size in sizes if size is not None), None)
