"""Tracing a step on the global batch: from a function of tensors to a graph with symbolic shapes.

The function is traced once, its graph is read and rewritten, and it is found which axis of each
argument counts samples: the step itself says which first sizes are equal. A step that is traced for
batches of one size has numbers in place of the batch size; a second trace, for batches twice as
large, shows which of them count samples.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.functions import (
    autographed,
    before_autograph_rewrites,
    failed_traces_leave_nothing,
    leave_to_autograph,
    mark_as_error_of_step,
)
from evener._tf_private.models import recording_layers
from evener._tf_private.tracing import batch_norm_in_parts, per_device_batch_norm
from evener.graph.dims import BATCH, Dim, Size, substitute, symbols_of
from evener.graph.draws import Streams, take_streams_out
from evener.graph.inference import Inference
from evener.graph.nodes import Graph, Node, Tensor, constant_array
from evener.graph.ops.registry import LARGEST_VALUE, Shape, operation
from evener.graph.rewrites import open_functions, take_known_branches
from evener.pinning.placement import no_colocation

# Sizes that count samples in a step that is traced for batches of one size.
#
# Such a trace has numbers where others have the size of the batch: the step has asked for it
# (``len(x)``), or draws from kernels with a seed, and TensorFlow traces it again for each size.
# Then nobody sees that the 8 of a gradient of ones is the batch's, and not that of eight classes.
#
# A second trace, for batches twice as large, shows it: what has become twice as large counts
# samples.
#
#     batches of 8     Const [8, 4]    ones (8, 4)    MatMul (8, 10)
#     batches of 16    Const [16, 4]   ones (16, 4)   MatMul (16, 10)
#     found            [B, 4]          (B, 4)         (B, 10)

# Samples of the second trace for each of the first: what the first can halve, the second can.
FACTOR = 2
_Sizes = tuple[Size | None, ...]


@dataclass(slots=True)
class SizesOfBatches:
    shapes: dict[Tensor, _Sizes] = field(default_factory=dict)  # Shapes of tensors in which some do
    # Numbers of constants of which some do
    values: dict[Tensor, tuple[Size, ...]] = field(default_factory=dict)


def find_sizes_of_batches(graph: Graph, larger: Graph, num_samples: int) -> SizesOfBatches:
    """Return the sizes that count samples; none if the graphs are of unlike operations."""
    sizes = SizesOfBatches()
    for node, other in _pairs(graph, larger) or ():
        tensors = zip(node.outputs, node.static_shapes, other.static_shapes, strict=True)
        for tensor, static, twice in tensors:
            if static and twice and len(static) == len(twice) and static != twice:
                pairs = zip(static, twice, strict=True)
                sizes.shapes[tensor] = tuple(_count_samples(*pair, num_samples) for pair in pairs)
        if node.op == "Const":
            numbers, others = _numbers(node.outputs[0]), _numbers(other.outputs[0])
            if numbers and others and len(numbers) == len(others) and numbers != others:
                pairs = zip(numbers, others, strict=True)
                values = [_count_samples(*pair, num_samples) for pair in pairs]
                sizes.values[node.outputs[0]] = tuple(n for n in values if n is not None)
    return sizes


def _pairs(graph: Graph, larger: Graph) -> list[tuple[Node, Node]] | None:
    """Return the nodes of both graphs side by side, those of bodies too; None for unlike graphs."""
    if len(graph.nodes) != len(larger.nodes):
        return None
    pairs: list[tuple[Node, Node]] = []
    for node, other in zip(graph.nodes, larger.nodes, strict=True):
        pairs.append((node, other))
        is_alike = (
            node.op == other.op
            and len(node.inputs) == len(other.inputs)
            and len(node.outputs) == len(other.outputs)
            and list(node.bodies) == list(other.bodies)
        )
        if not is_alike:
            return None
        for name, body in node.bodies.items():
            inside = _pairs(body, other.bodies[name])
            if inside is None:
                return None
            pairs += inside
    return pairs


def _numbers(constant: Tensor) -> Sequence[int] | None:
    """Return the numbers of a small constant of integers, a scalar or vector."""
    shape = constant.node.static_shapes[constant.index]
    if not constant.dtype.is_integer or shape is None or len(shape) > 1:
        return None
    if any(size is None or size > LARGEST_VALUE for size in shape):
        return None
    array = constant_array(constant)
    return None if array is None else [int(number) for number in array.ravel()]


def _count_samples(size: int | None, larger: int | None, num_samples: int) -> Size | None:
    if size and size % num_samples == 0 and larger == FACTOR * size:
        return BATCH * (size // num_samples)
    return size


class _EqualSizes(Inference):
    """Finds sizes that are equal, while shapes are inferred."""

    def __init__(self, num_samples: int | None) -> None:
        super().__init__(num_samples=num_samples)
        self.arguments: set[str] = set()  # The symbols of the first sizes of arguments
        self.same_as: dict[str, str] = {}  # Another symbol that is equal, by symbol
        self._to_maximum: dict[Tensor, Size] = {}

    def infer(self, node: Node) -> None:
        """Learn from what a node reads, whose shapes are then written in the first symbols."""
        for left, right in (*_equal_sizes(node), *self._broadcast(node)):
            self._learn(left, right)
        if self.same_as:
            for tensor in node.inputs:
                tensor.shape = self._known(tensor.shape)
                tensor.value = self._known(tensor.value)
        super().infer(node)

    def first(self, name: str) -> str:
        """Return the symbol that stands for all that are equal to one."""
        while name in self.same_as:
            name = self.same_as[name]
        return name

    def _broadcast(self, node: Node) -> Iterable[tuple[Size, Size]]:
        """Return sizes of two tensors that are broadcast to the maximum of them.

        So Keras broadcasts tensors of unknown sizes, as in ``keras.ops.take_along_axis``.
        """
        shape = node.inputs[0].shape if node.op == "BroadcastTo" else None
        target = node.inputs[1].node if shape is not None else node
        if shape is None or target.op != "Pack":
            return
        for size, number in zip(reversed(shape), reversed(target.inputs), strict=False):
            if number.node.op == "Maximum":
                other = self._to_maximum.setdefault(number, size)
                if {tensor.value for tensor in number.node.inputs} == {(size,), (other,)}:
                    yield other, size
                    # The maximum is that size as well.
                    for largest in number.value or ():
                        self.arguments |= symbols_of(largest)
                        yield size, largest

    def _learn(self, left: Size, right: Size) -> None:
        left, right = self._known((left, right)) or (left, right)
        only_left = (symbols_of(left) - symbols_of(right)) & self.arguments
        only_right = (symbols_of(right) - symbols_of(left)) & self.arguments
        if len(only_left) != 1 or len(only_right) != 1:
            return
        before, after = sorted(only_left | only_right, key=lambda name: int(name[1:]))
        if substitute(left, {after: before}) == substitute(right, {after: before}):
            self.same_as[after] = before

    def _known(self, sizes: Shape | None) -> Shape | None:
        if sizes is None:
            return None
        names = {name: self.first(name) for name in self.same_as}
        return tuple(substitute(size, names) for size in sizes)


def find_first_sizes(graph: Graph, unknown: Sequence[int], num_samples: int | None) -> list[int]:
    inference = _EqualSizes(num_samples)
    for tensor in graph.inputs:
        inference.input_shape(tensor, None, BATCH)
    symbols: list[str] = []
    for index in unknown:
        size = (graph.inputs[index].shape or (0,))[0]
        symbols.append(next(iter(symbols_of(size)), f"known {index}"))
    inference.arguments |= set(symbols)
    inference.run(graph)
    firsts: dict[str, int] = {}
    pairs = zip(symbols, unknown, strict=True)
    return [firsts.setdefault(inference.first(name), index) for name, index in pairs]


def batch_of(graph: Graph, unknown: Sequence[int], firsts: Sequence[int]) -> int:
    """Return which first size is that of the batch: of the arguments with most numbers in a row."""
    totals = dict.fromkeys(firsts, 0)
    for index, first in zip(unknown, firsts, strict=True):
        shape = graph.inputs[index].shape or ()
        totals[first] += math.prod(size for size in shape[1:] if isinstance(size, int))
    return max(totals, key=lambda first: totals[first])


def fits_one_batch_size(graph: Graph) -> bool:
    """Return whether a step adds, compares or joins its samples with a number of rows.

    Such as labels of 32 rows: then it runs with batches of 32 samples alone, on one device too.
    """
    for node in graph:
        for left, right in _equal_sizes(node):
            is_known = symbols_of(left) | symbols_of(right) == symbols_of(BATCH)
            # A size of 1 is broadcast.
            if is_known and 1 not in (left, right) and isinstance(left - right, Dim):
                return True
        if any(map(fits_one_batch_size, node.bodies.values())):
            return True
    return False


def _equal_sizes(node: Node) -> Iterable[tuple[Size, Size]]:
    """Return pairs of sizes that a kernel needs to be equal."""
    rule = operation(node.op).equal_sizes
    return () if rule is None else rule(node)


_LOG = logging.getLogger("evener")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    concrete: Any  # TensorFlow's function; it keeps what the graph refers to alive
    graph: Graph  # The nodes, with symbolic shapes
    inference: Inference  # Table of the symbols and their sources
    batch_axes: tuple[int | None, ...]  # Axis that counts samples of every flat argument, or None
    # Sets of arguments whose first sizes are equal because the step needs it
    equal_sizes: tuple[tuple[int, ...], ...]
    structure: Any  # The nested structure that the step returned
    # The path of the layer that opened each scope of names, if it was asked for
    scopes: dict[str, str]
    # Random streams whose counters it is given and returns; None if it has none
    streams: Streams | None = None

    @property
    def captures(self) -> list[Any]:
        return list(self.concrete.captured_inputs)

    @property
    def capture_inputs(self) -> list[Tensor]:
        """The inputs of the graph that stand for the captures, in their order."""
        first = len(self.batch_axes)
        return list(self.graph.inputs[first : first + len(self.concrete.captured_inputs)])

    @property
    def trains(self) -> bool:
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
    pairs = list(zip(unknown, firsts, strict=True))
    equal = [tuple(k for k, other in pairs if other == first) for first in dict.fromkeys(firsts)]
    if len(equal) > 1:
        batch = batch_of(graph, unknown, firsts)
        others = {k for k, first in pairs if first != batch}
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
    with_layers: bool = False,
    batch_norm_per_device: bool = False,
) -> tuple[Any, Any, dict[str, str]]:
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
        with recording as layers, marking, batch_norm_in_parts(), no_colocation():
            result = tf.nest.map_structure(_as_tensor, guarded(*arguments))
        scopes.update(layers)
        structures.append(result)
        return [
            leaf for leaf in tf.nest.flatten(result, expand_composites=True) if _is_tensor(leaf)
        ]

    try:
        with failed_traces_leave_nothing():
            concrete = tf.function(flat, autograph=autograph).get_concrete_function(*specs)
    except Exception as error:
        if not raised:
            raise error from None
        raise mark_as_error_of_step(raised[0]()) from None
    return concrete, structures[-1], scopes


def check_trace(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> None:
    """Raise the error of shapes or types that a trace of a step for some arguments ends in."""
    try:
        _trace(function, specs, autograph=True)
    except (ValueError, TypeError):
        raise
    except Exception as error:
        # Of what the trace did besides: the failure that made it necessary is told instead.
        _LOG.debug("a step that failed is not traced for its shapes: %s", error)


def _inferred(
    graph: Graph,
    batch_axes: Sequence[int | None],
    equal: Sequence[Sequence[int]],
    num_samples: int | None,
    known: SizesOfBatches,
) -> Inference:
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


def repack(structure: Any, tensors: Sequence[Any]) -> Any:
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
