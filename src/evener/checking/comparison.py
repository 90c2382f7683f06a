"""Comparison of a few samples: both sides are computed on copies of the variables.

::

    rows of a batch ─────────┐
    copies of the variables ─┴─► both sides ──► differences ──► result
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.tensors import is_eager_tensor
from evener._tf_private.variables import plain_variable
from evener.checking.compare import find_differences
from evener.checking.differences import as_array
from evener.checking.precision import rounding_of
from evener.checking.sides import Extent, Sides, extent_of, written_names
from evener.checking.spot_check import NotDoneError, SpotCheck
from evener.engine.partition.emit import PartitionedStep
from evener.engine.partition.homes import HOST
from evener.engine.report import line_of
from evener.engine.trace.draws import StreamState
from evener.engine.trace.step import TracedStep
from evener.graph.nodes import Tensor


def compare_samples(
    step: PartitionedStep,
    traced: TracedStep,
    arrays: Sequence[np.ndarray],
    sizes: Sequence[int],
    go_on: Callable[[], None],
) -> SpotCheck:
    """Compare the parts of a step with the whole step.

    Args:
        step: Partitioned step.
        traced: Step as it was traced.
        arrays: Arguments with the samples, and values of the graph around the step.
        sizes: Number of samples of each part.
        go_on: Function that raises an error if the comparison should end.

    Raises:
        NotDoneError: If nothing can be compared.
    """
    go_on()
    extent = extent_of(step)
    if not extent.compared:
        raise NotDoneError("nothing that the parts compute can be computed again")
    sides = Sides(step, traced, sizes, extent)
    if sides.obstacle:
        raise NotDoneError(f"the {sides.obstacle} is not known")
    go_on()
    fed, variables, closed = _inputs(traced, sides.needed_inputs(), arrays)
    # One after the other, so that no device holds more than one of them twice.
    values = [variable.numpy() for variable in variables.values()]
    with tf.device(HOST):
        copies = [plain_variable(value, tf.as_dtype(value.dtype)) for value in values]
    closed |= {tensor: copy.handle for tensor, copy in zip(variables, copies, strict=True)}
    specs = {tensor: tf.TensorSpec(array.shape, tensor.dtype) for tensor, array in fed.items()}
    function = sides.trace(closed, specs)

    def compute(inputs: Sequence[np.ndarray]) -> Any:
        go_on()
        for copy, value in zip(copies, inputs[len(fed) :], strict=True):
            copy.assign(value)
        tensors = [tf.constant(n, s.dtype) for n, s in zip(inputs, specs.values(), strict=False)]
        return [[as_array(tensor) for tensor in side] for side in function(*tensors)]

    with tf.device(HOST):
        kinds = [reader is None for reader in extent.compared.values()]
        found = find_differences(compute, [*fed.values(), *values], rounding_of(traced), kinds)
    return SpotCheck(
        state="differs" if found else "agrees",
        differences=tuple(
            (_name(traced, sides.compared[number], extent), by) for number, by in found.items()
        ),
        num_samples=sum(sizes),
        num_tensors=len(sides.compared),
    )


def is_value_of_outer_graph(capture: Any) -> bool:
    """Return whether a capture is a value of the function that calls the step."""
    is_value = capture.dtype not in (tf.resource, tf.variant)
    return is_value and not is_eager_tensor(capture)


def _inputs(
    traced: TracedStep, needed: set[Tensor], arrays: Sequence[np.ndarray]
) -> tuple[dict[Tensor, np.ndarray], dict[Tensor, tf.Variable], dict[Tensor, Any]]:
    """Return arrays that are fed, variables that are copied, and captures of both sides."""
    arguments = traced.graph.inputs[: len(traced.batch_axes)]
    fed = dict(zip(arguments, arrays, strict=False))
    outer = iter(arrays[len(arguments) :])
    variables: dict[Tensor, tf.Variable] = {}
    closed: dict[Tensor, Any] = {}
    by_handle = _by_handle(traced)
    for tensor, capture in zip(traced.capture_inputs, traced.captures, strict=True):
        if is_value_of_outer_graph(capture):
            fed[tensor] = next(outer)
        elif tensor not in needed:
            continue
        elif id(capture) in by_handle:
            variables[tensor] = by_handle[id(capture)]
        elif is_eager_tensor(capture):
            closed[tensor] = capture
        else:
            raise NotDoneError("the step uses a resource of the function around it")
    if traced.streams is not None:
        closed[traced.streams.counters] = StreamState().counters_of(traced.streams.names)
    fed = {tensor: array for tensor, array in fed.items() if tensor in needed}
    return fed, variables, closed


def _name(traced: TracedStep, tensor: Tensor, extent: Extent) -> str:
    """Return the name of a tensor that differs, with the source line of its operation."""
    reader = extent.compared[tensor]
    if reader is None:
        name = f"result {traced.graph.outputs.index(tensor)} of the step"
    else:
        by_handle = _by_handle(traced)
        pairs = zip(traced.capture_inputs, traced.captures, strict=True)
        names = {
            handle: by_handle[id(capture)].name
            for handle, capture in pairs
            if id(capture) in by_handle
        }
        written = next(written_names(reader, tensor, names), "")
        name = f"what updates {written}" if written else tensor.node.name
    line = line_of(tensor.node)
    return f"{name} ({line})" if line else name


def _by_handle(traced: TracedStep) -> dict[int, tf.Variable]:
    return {id(variable.handle): variable for variable in traced.concrete.graph.variables}
