"""Draws from generators whose state is in a kernel, such as those of `tf.random.normal`.

Such a kernel counts what it has drawn, from the step's first run on: its *stream*. TensorFlow makes
new kernels, and so begins new streams, with each trace of the program's function. What is traced
here serves several of those, or only a part of the batches of one. So the count is taken out of the
kernels: a step is given the counters of its streams, and returns them as they are behind it::

    RandomUniform(shape)    ->    StatelessRandomUniform(shape, key, counters[k])
                                  counters[k] += 256 blocks for each number that is drawn

That is what the kernels do (`GuardedPhiloxRandom`), and the numbers are theirs, bit by bit. Draws
in loops and conditions, and of other laws, stay in their kernels.

Several workers run the kernels, and all take the numbers of one of them: generators without a seed
draw other numbers in every process. A step that is computed again draws again; so the numbers of
each kernel are a queue, from which a step takes the first ones that no step has used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener.engine.trace.functional import CONDITIONS, LOOPS, bodies_of
from evener.errors import EngineError
from evener.graph.nodes import Graph, Node, Tensor

DRAWS = "draws"
"""Role of the tasks that run such kernels."""
StreamName: TypeAlias = tuple[str, int, int, int]
"""Operation, its two seeds, and how many with the same ones are before it in the step."""

_COUNTED = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
}
_BLOCKS = 256
"""Blocks of Philox that a kernel counts for each number."""
_PHILOX = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Streams of a step.

    Attributes:
        counters: Argument of the graph: a row for each stream, the last output is the new ones.
        names: Name of each stream.
    """

    counters: Tensor
    names: tuple[StreamName, ...]


class StreamState:
    """Where the streams are that one trace of a program's function would have."""

    def __init__(self) -> None:
        self._names: tuple[StreamName, ...] = ()
        self._counters: Any = None
        self._rows: dict[StreamName, np.ndarray] = {}

    def counters_of(self, names: tuple[StreamName, ...]) -> Any:
        """Return the counters of some streams; those that are new begin."""
        if names != self._names:
            if self._names:
                self._rows.update(zip(self._names, self._counters.numpy(), strict=True))
            begins = [np.array([0, name[2]], np.int64).view(np.uint64) for name in names]
            pairs = zip(names, begins, strict=True)
            rows = np.stack([self._rows.get(name, begin) for name, begin in pairs])
            with tf.device("CPU:0"):
                self.advance(names, tf.constant(rows))
        return self._counters

    def advance(self, names: tuple[StreamName, ...], counters: Any) -> None:
        """Take note of the counters of streams behind a step."""
        self._names, self._counters = names, counters


def take_streams_out(graph: Graph) -> Streams | None:
    """Give a step the counters of its streams, as far as they can be taken out of kernels."""
    drawn = [node for node in graph if node.op in _COUNTED and has_seed(node) and not node.xla]
    if not drawn:
        return None
    names: list[StreamName] = []
    before, behind = _Made("evener_streams", drawn[0]), _Made("evener_drawn", drawn[0])
    counters = before.node("Placeholder", [], {}, tf.uint64, (len(drawn), 2))
    counts: list[Tensor] = []
    for row, node in enumerate(drawn):
        shape, *limits = node.inputs
        counts.append(behind.product(shape, node.static_shapes[0]))
        seeds = (node.op, node.int_attr("seed"), node.int_attr("seed2"))
        names.append((*seeds, sum(name[:3] == seeds for name in names)))
        bounds = [before.constant(number, tf.int32) for number in ([row], [row + 1], [1])]
        masks = {f"{mask}_mask": 0 for mask in ("begin", "end", "ellipsis", "new_axis")}
        attrs = {"T": tf.uint64, "Index": tf.int32, **masks, "shrink_axis_mask": 1}
        counter = before.node("StridedSlice", [counters, *bounds], attrs, tf.uint64, (2,))
        key = before.constant(np.array([seeds[1]], np.int64).view(np.uint64), tf.uint64)
        node.inputs = [shape, key, counter, before.constant(_PHILOX, tf.int32), *limits]
        node.attrs = _attrs({"dtype": node.outputs[0].dtype, "Tshape": shape.dtype})
        node.op = _COUNTED[node.op]
    size = len(drawn)
    total = behind.node("Pack", counts, {"T": tf.int64, "N": size, "axis": 0}, tf.int64, (size,))
    factor = behind.constant([[_BLOCKS, 0]], tf.int64)
    column = behind.constant([size, 1], tf.int32)
    attrs = {"T": tf.int64, "Tshape": tf.int32}
    total = behind.node("Reshape", [total, column], attrs, tf.int64, (size, 1))
    total = behind.node("Mul", [total, factor], {"T": tf.int64}, tf.int64, (size, 2))
    attrs = {"SrcT": tf.int64, "DstT": tf.uint64, "Truncate": False}
    total = behind.node("Cast", [total], attrs, tf.uint64, (size, 2))
    after = behind.node("AddV2", [counters, total], {"T": tf.uint64}, tf.uint64, (size, 2))
    for node in graph:
        node.after = node.after.difference(drawn)
    graph.nodes[:] = [*before.nodes, *graph.nodes, *behind.nodes]
    graph.inputs.append(counters)
    graph.outputs.append(after)
    return Streams(counters=counters, names=tuple(names))


class _Made:
    """Nodes that belong to draws of the traced step.

    Args:
        prefix: Begin of their names.
        draw: A draw.
    """

    def __init__(self, prefix: str, draw: Node) -> None:
        self.nodes: list[Node] = []
        self._prefix, self._source = prefix, draw.source

    def node(
        self,
        op: str,
        inputs: Sequence[Tensor],
        attrs: Mapping[str, Any],
        dtype: tf.DType,
        shape: tuple[int | None, ...],
    ) -> Tensor:
        name = f"{self._prefix}/{len(self.nodes)}"
        made = Node(
            name,
            op,
            inputs,
            _attrs(attrs),
            dtypes=[dtype],
            static_shapes=[shape],
            source=self._source,
        )
        self.nodes.append(made)
        return made.outputs[0]

    def constant(self, value: Any, dtype: tf.DType) -> Tensor:
        proto = tf.make_tensor_proto(value, dtype)
        return self.node("Const", [], {"dtype": dtype, "value": proto}, dtype, np.shape(value))

    def product(self, shape: Tensor, known: tuple[int | None, ...] | None) -> Tensor:
        """Add the number of elements of a shape."""
        if known is not None and all(size is not None for size in known):
            return self.constant(math.prod(size or 0 for size in known), tf.int64)
        if shape.dtype != tf.int64:
            attrs = {"SrcT": shape.dtype, "DstT": tf.int64, "Truncate": False}
            sizes = (None,) if known is None else (len(known),)
            shape = self.node("Cast", [shape], attrs, tf.int64, sizes)
        attrs = {"T": tf.int64, "Tidx": tf.int32, "keep_dims": False}
        return self.node("Prod", [shape, self.constant([0], tf.int32)], attrs, tf.int64, ())


def _attrs(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of a node as protocol buffers."""

    def attr(value: Any) -> Any:
        if isinstance(value, tf.DType):
            return graphs.AttrValue(type=value.as_datatype_enum)
        if isinstance(value, bool):
            return graphs.AttrValue(b=value)
        return (
            graphs.AttrValue(i=value) if isinstance(value, int) else graphs.AttrValue(tensor=value)
        )

    return {name: attr(value) for name, value in values.items()}


def draws(node: Node) -> bool:
    """Return whether a node draws from a state that its kernel has."""
    return node.is_stateful and any("seed" in name for name in node.attrs)


def has_seed(node: Node) -> bool:
    """Return whether the state of a drawing node begins with a fixed seed."""
    return any(node.int_attr(name) for name in ("seed", "seed2") if name in node.attrs)


def has_hidden_draws(graph: Graph, *, is_inside: bool = False) -> bool:
    """Return whether bodies of loops and conditions draw.

    Raises:
        EngineError: ENG-097 if they draw without a seed.
    """
    found = False
    for node in graph:
        if is_inside and draws(node):
            if not has_seed(node):
                raise EngineError(
                    "ENG-097",
                    f"A loop or a condition draws random numbers without a seed: {node.op}.",
                    why="Each worker would draw other numbers.",
                    fix="Call keras.utils.set_random_seed(1) at the start, or draw in front of the "
                    "loop.",
                )
            found = True
        if node.op in LOOPS | CONDITIONS:
            bodies = node.bodies or bodies_of(node, graph)
            found |= any([has_hidden_draws(b, is_inside=True) for b in bodies.values()])
    return found
