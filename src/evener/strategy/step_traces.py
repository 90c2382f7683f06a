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

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from evener._tf_private.shapes import noticing_unknown_sizes
from evener.engine.partition.emit import PartitionedStep
from evener.engine.trace.draws import StreamState
from evener.strategy.arguments import Arguments
from evener.strategy.prepared import PreparedStep

Trace: TypeAlias = Callable[
    [Arguments, Sequence[tf.TensorSpec], int | None, StreamState], PreparedStep
]
"""Function of arguments, specs of their tensors, the number of samples if it is fixed, and random
numbers of the program's trace."""


class ProgramTrace:
    """One trace that the program's function would have.

    Attributes:
        streams: Positions of its random streams.
        steps: Steps that run in its place, by kind of arguments.
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
        self._all: dict[PreparedStep | None, None] = {}
        self._needs_sizes: set[Any] = set()
        self._of_program: dict[Any, ProgramTrace] = {}

    def values(self) -> list[PreparedStep]:
        """Return all traces."""
        return [step for step in self._all if step is not None]

    def of_program(self, key: Any) -> ProgramTrace:
        """Return a trace of the program's function.

        Args:
            key: Object that stands for it.
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
        if step is None:
            step = self._find(key, arguments, program, shapes(), make)
            program.streams.is_first = False
            # In a graph, each call has kernels and streams of its own.
            draws = step.draws_from_seeds() or program.streams.draws_in_python
            if tf.executing_eagerly() or not draws:
                program.steps[key] = step
            if step not in self._all:
                self._all[step] = None
                if self._when_traced is not None:
                    self._when_traced(step.partitioned)
        return step

    def _find(
        self,
        key: Any,
        arguments: Arguments,
        program: ProgramTrace,
        shapes: Sequence[tf.TensorShape],
        make: Trace,
    ) -> PreparedStep:
        """Return the trace for all sizes, unless the step needs those of the program's trace."""
        general, own = self._traces.get(key), _own_specs(arguments, shapes)
        specs = _specs(arguments, own, None if general is None else general.specs)
        if general is not None and general.serves(specs):
            return general
        symbolic: Exception | None = None
        # What is not known in either is not known to the program.
        if specs == own or key not in self._needs_sizes:
            try:
                with noticing_unknown_sizes() as sizes:
                    step = make(arguments, specs, None, program.streams)
                draws = step.draws_from_seeds() or program.streams.draws_in_python
                if not draws and not sizes.is_asked:
                    self._replace(key, step)
                    return step
                if not (draws and tf.executing_eagerly()) and (specs == own or not sizes.is_asked):
                    return step
            except Exception as error:
                if specs == own:
                    raise
                symbolic = error
        # The step asks for sizes while it is traced, as `len(x)`, or has streams of its own.
        alone = dataclasses.replace(arguments, axes=(), unknown=()).key()
        if alone not in program.steps:
            pairs = zip(own, arguments.axes, strict=True)
            samples = [spec.shape[axis] for spec, axis in pairs if axis is not None]
            try:
                known = (size for size in samples if size is not None)
                program.steps[alone] = make(arguments, own, next(known, None), program.streams)
            except Exception as error:
                # The first attempt says no more, if it failed in the same way.
                raise error from None if type(error) is type(symbolic) else symbolic
        self._needs_sizes.add(key)
        return program.steps[alone]

    def _replace(self, key: Any, step: PreparedStep) -> None:
        """Use a trace for more sizes in place of the one before, which is not needed any more."""
        before = self._traces.get(key)
        self._traces[key] = step
        for program in self._of_program.values():
            if before is not None and program.steps.get(key) is before:
                program.steps[key] = step
        self._all.pop(before, None)


def _own_specs(arguments: Arguments, shapes: Sequence[tf.TensorShape]) -> list[tf.TensorSpec]:
    """Return the specs of tensors in a trace of the program; their ranks are known."""
    pairs = zip(arguments.tensors, shapes, strict=True)
    return [
        tf.TensorSpec(
            [None] * t.shape.rank if shape.rank is None and t.shape.rank else shape, t.dtype
        )
        for t, shape in pairs
    ]


def _specs(
    arguments: Arguments, own: Sequence[tf.TensorSpec], before: Sequence[tf.TensorSpec] | None
) -> list[tf.TensorSpec]:
    """Return the specs of tensors; sizes that have changed since the last trace are left open."""
    specs = []
    for index, (spec, axis) in enumerate(zip(own, arguments.axes, strict=True)):
        shape = spec.shape.as_list() if spec.shape.rank is not None else None
        if shape is not None and axis is not None:
            shape[axis] = None
        if shape is not None and before is not None and before[index].shape.rank == len(shape):
            old = before[index].shape.as_list()
            shape = [
                size if size == known else None for size, known in zip(shape, old, strict=True)
            ]
        untyped: Any = shape
        specs.append(tf.TensorSpec(untyped, spec.dtype))
    return specs
