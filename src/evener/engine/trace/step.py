"""Tracing a step on the global batch, and finding which axis of each argument counts samples."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.autograph import autographed, before_autograph_rewrites, leave_to_autograph
from evener._tf_private.batch_norm import batch_norm_in_parts, per_device_batch_norm
from evener._tf_private.layers import recording_layers
from evener._tf_private.tracebacks import mark_as_error_of_step
from evener.engine.trace.draws import Streams, take_streams_out
from evener.engine.trace.first_sizes import batch_of, find_first_sizes
from evener.engine.trace.functional import open_functions
from evener.engine.trace.inference import Inference
from evener.engine.trace.known_branches import take_known_branches
from evener.engine.trace.sizes_of_batches import FACTOR, SizesOfBatches, find_sizes_of_batches
from evener.graph.dims import BATCH
from evener.graph.nodes import Graph, Tensor
from evener.pinning.placement import no_colocation

_LOG = logging.getLogger("evener")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step as one graph.

    Attributes:
        concrete: TensorFlow's function; it keeps what the graph refers to alive.
        graph: The nodes, with symbolic shapes.
        inference: Table of the symbols and their sources.
        batch_axes: Axis that counts samples of every flat argument, or None.
        equal_sizes: Sets of arguments whose first sizes are equal because the step needs it.
        structure: The nested structure that the step returned.
        scopes: The path of the layer that opened each scope of names, if it was asked for.
        streams: Random streams whose counters it is given and returns; None if it has none.
    """

    concrete: Any
    graph: Graph
    inference: Inference
    batch_axes: tuple[int | None, ...]
    equal_sizes: tuple[tuple[int, ...], ...]
    structure: Any
    scopes: dict[str, str]
    streams: Streams | None = None

    @property
    def captures(self) -> list[Any]:
        """Captures: variables and other tensors that the step uses without being given them."""
        return list(self.concrete.captured_inputs)

    @property
    def capture_inputs(self) -> list[Tensor]:
        """The inputs of the graph that stand for the captures, in their order."""
        first = len(self.batch_axes)
        return list(self.graph.inputs[first : first + len(self.concrete.captured_inputs)])

    @property
    def trains(self) -> bool:
        """Whether the step writes a variable that is trained."""
        trained = {id(variable.handle) for variable in self.concrete.graph.trainable_variables}
        handles = {
            tensor
            for tensor, capture in zip(self.capture_inputs, self.captures, strict=True)
            if id(capture) in trained
        }
        return any(
            node.has_side_effect and any(tensor in handles for tensor in node.inputs)
            for node in self.graph
        )


def trace_step(
    function: Callable[..., Any],
    specs: Sequence[tf.TensorSpec],
    batch_axes: Sequence[int | None],
    *,
    autograph: bool,
    unknown: Sequence[int] = (),
    num_samples: int | None = None,
    with_layers: bool = False,
    batch_norm_per_device: bool = False,
    takes_streams: bool = False,
) -> TracedStep:
    """Trace a step.

    Args:
        function: Called with flat tensors; returns anything nested.
        specs: The spec of every flat argument; None for axes that count samples.
        batch_axes: The axis of every argument that counts samples, or None.
        autograph: Whether Python's loops and conditions on tensors are converted.
        unknown: The arguments of which nobody knows whether their first size is that of the batch.
        num_samples: The size of all batches, if the specs name it.
        with_layers: Whether to record which layer every operation belongs to.
        batch_norm_per_device: Whether BatchNormalization takes its statistics of the samples of
            each part.
        takes_streams: Whether it is given the counters of its random streams, where it can be.
    """
    trace_again = functools.partial(
        _trace,
        function,
        autograph=autograph,
        with_layers=with_layers,
        batch_norm_per_device=batch_norm_per_device,
    )
    concrete, structure, scopes = trace_again(specs)
    graph = Graph(concrete.graph)
    open_functions(graph)
    graph.drop_identities_of_results()
    firsts = find_first_sizes(graph, unknown, num_samples) if len(unknown) > 1 else list(unknown)
    equal = _sets_of_equal(unknown, firsts)
    if len(equal) > 1:
        batch = batch_of(graph, unknown, firsts)
        others = {k for k, first in zip(unknown, firsts, strict=True) if first != batch}
        batch_axes = [None if k in others else axis for k, axis in enumerate(batch_axes)]
    known = SizesOfBatches()
    if num_samples is not None and num_samples > 1:
        known = _sizes_of_batches(graph, num_samples, trace_again, specs, batch_axes)
    streams = take_streams_out(graph) if takes_streams else None
    return TracedStep(
        concrete=concrete,
        graph=graph,
        inference=_inferred(graph, batch_axes, equal, num_samples, known),
        batch_axes=tuple(batch_axes),
        equal_sizes=tuple(group for group in equal if len(group) > 1),
        structure=structure,
        scopes=scopes,
        streams=streams,
    )


def _trace(
    function: Callable[..., Any],
    specs: Sequence[tf.TensorSpec],
    *,
    autograph: bool,
    with_layers: bool,
    batch_norm_per_device: bool,
) -> tuple[Any, Any, dict[str, str]]:
    """Return the concrete function of a step, what the step returns, and the layers of scopes."""
    structures: list[Any] = []
    scopes: dict[str, str] = {}
    raised: list[Callable[[], Exception]] = []

    def guarded(*arguments: Any) -> Any:
        try:
            return autographed(function)(*arguments)
        except Exception as error:
            raised.append(before_autograph_rewrites(error))
            raise

    # An error of a person's code is not one of the engine's functions too: AutoGraph rewrites it
    # in each function that it has converted, and makes a StagingError of its own KeyError.
    leave_to_autograph(guarded)

    def flat(*arguments: Any) -> list[Any]:
        recording = recording_layers() if with_layers else contextlib.nullcontext({})
        marking = per_device_batch_norm() if batch_norm_per_device else contextlib.nullcontext()
        with recording as found, marking, batch_norm_in_parts(), no_colocation():
            result = tf.nest.map_structure(_as_tensor, guarded(*arguments))
        scopes.update(found)
        structures.append(result)
        return [
            leaf for leaf in tf.nest.flatten(result, expand_composites=True) if _is_tensor(leaf)
        ]

    try:
        concrete = tf.function(flat, autograph=autograph).get_concrete_function(*specs)
    except Exception as error:
        if not raised:
            raise error from None
        raise mark_as_error_of_step(raised[0]()) from None
    return concrete, structures[-1], scopes


def _inferred(
    graph: Graph,
    batch_axes: Sequence[int | None],
    equal: Sequence[Sequence[int]],
    num_samples: int | None,
    known: SizesOfBatches,
) -> Inference:
    """Return the symbolic shapes of a graph, in which branches that are known are taken.

    Args:
        graph: Graph of the step.
        batch_axes: Axis of every argument that counts samples, or None.
        equal: Sets of arguments whose first sizes are equal.
        num_samples: Size of all batches, if it is known.
        known: Sizes of such batches that count samples.
    """
    inference = Inference(num_samples=num_samples, shapes=known.shapes, values=known.values)
    for tensor, axis in zip(graph.inputs, batch_axes, strict=False):
        inference.input_shape(tensor, axis, BATCH)
    for tensor in graph.inputs[len(batch_axes) :]:
        inference.input_shape(tensor, None, BATCH)
    for first, *rest in equal:
        if batch_axes[first] is None:
            for index in rest:
                size = inference.new_symbol(graph.inputs[first], 0)
                inference.input_shape(graph.inputs[index], 0, size)
    inference.run(graph)
    while take_known_branches(graph):
        inference.run(graph)
    return inference


def _sizes_of_batches(
    graph: Graph,
    num_samples: int,
    trace: Callable[[Sequence[tf.TensorSpec]], tuple[Any, Any, dict[str, str]]],
    specs: Sequence[tf.TensorSpec],
    batch_axes: Sequence[int | None],
) -> SizesOfBatches:
    """Return the sizes of a graph for batches of one size that count samples, by a second trace."""
    larger: list[tf.TensorSpec] = []
    for spec, axis in zip(specs, batch_axes, strict=True):
        shape: Any = spec.shape.as_list() if axis is not None else spec.shape
        if axis is not None:
            shape[axis] = FACTOR * num_samples
        larger.append(tf.TensorSpec(shape, spec.dtype))
    try:
        concrete, _, _ = trace(larger)
        other = Graph(concrete.graph)
        open_functions(other)
        other.drop_identities_of_results()
    # A program that was not written for other batches may raise anything.
    except Exception as error:
        _LOG.debug("a step is not traced for other batches: %s", error)
        return SizesOfBatches()
    return find_sizes_of_batches(graph, other, num_samples)


def _sets_of_equal(unknown: Sequence[int], firsts: Sequence[int]) -> list[tuple[int, ...]]:
    return [
        tuple(k for k, other in zip(unknown, firsts, strict=True) if other == first)
        for first in dict.fromkeys(firsts)
    ]


def repack(structure: Any, tensors: Sequence[Any]) -> Any:
    """Return the nested structure that a step returned, with other tensors."""
    rest = iter(tensors)
    leaves = tf.nest.flatten(structure, expand_composites=True)
    values = [next(rest) if _is_tensor(leaf) else leaf for leaf in leaves]
    return tf.nest.pack_sequence_as(structure, values, expand_composites=True)


def _as_tensor(value: Any) -> Any:
    """As under `tf.function`, numbers that are returned become tensors."""
    is_number = isinstance(
        value, bool | int | float | complex | str | bytes | np.ndarray | np.generic
    )
    return tf.convert_to_tensor(value) if is_number else value  # pyright: ignore[reportArgumentType]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor | tf.Operation | tf.Variable)
