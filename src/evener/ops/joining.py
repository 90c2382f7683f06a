"""Tensors that are joined, stacked, split and taken apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evener.graph.dims import Size, divide, has_batch
from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import is_number
from evener.ops.decision import PARTIALS, ROWS, WHOLE, Decision
from evener.ops.registry import (
    FREE,
    Matrix,
    Shape,
    Shapes,
    Trait,
    equal_sizes_rule,
    gathered,
    index_inputs,
    matrix_rule,
    partial_rule,
    rule,
    shape_rule,
    traits,
    value_rule,
)
from evener.ops.states import (
    REPLICATED,
    Numbers,
    Partial,
    Sharded,
    State,
    is_shardable,
    rows_per_sample,
)
from evener.ops.values import matrices_of


@shape_rule("Pack")
def _pack_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = next((t.shape for t in node.inputs if t.shape is not None), None)
    if shape is None:
        return None
    axis = node.int_attr("axis") % (len(shape) + 1)
    return [(*shape[:axis], len(node.inputs), *shape[axis:])]


@value_rule("Pack")
def _pack_value(table: SymbolTable, node: Node) -> Shapes:
    values = [t.value for t in node.inputs]
    if any(t.rank != 0 for t in node.inputs) or any(value is None for value in values):
        return None
    return [tuple(value[0] for value in values if value is not None)]


@matrix_rule("Pack")
def _pack_matrix(node: Node) -> Matrix | None:
    arrays = matrices_of(node.inputs)
    if arrays is None or len({array.shape for array in arrays}) != 1:
        return None
    return np.stack(arrays, node.int_attr("axis"))


@rule("Pack", inputs=ROWS)
def _pack(node: Node, states: Sequence[State]) -> Decision | None:
    first = next((s for s in states if isinstance(s, Sharded)), None)
    rank = node.inputs[0].rank
    if first is None or rank is None:
        return None
    if not all(is_shardable(t.shape, first) for t in node.inputs):
        return None
    axis = node.int_attr("axis") % (rank + 1)
    target = first.at(first.axis + (axis <= first.axis))
    return Decision(inputs=(first,) * len(states), outputs=(target,))


@equal_sizes_rule("Pack")
def _equal_sizes(node: Node) -> Iterator[tuple[Size, Size]]:
    known = [tensor.shape for tensor in node.inputs if tensor.shape is not None]
    for shape in known[1:]:
        yield from zip(known[0], shape, strict=False)


@shape_rule("Unpack")
def _unpack_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    if shape is None:
        return None
    axis = node.int_attr("axis") % len(shape)
    return [(*shape[:axis], *shape[axis + 1 :])] * len(node.outputs)


@value_rule("Unpack")
def _unpack_value(table: SymbolTable, node: Node) -> Shapes:
    value = node.inputs[0].value
    if value is None or node.inputs[0].rank != 1:
        return None
    return [(number,) for number in value]


@rule("Unpack", inputs=ROWS)
def _unpack(node: Node, states: Sequence[State]) -> Decision | None:
    state, rank = states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded):
        return None
    axis = node.int_attr("axis") % rank
    if axis == state.axis:
        return None
    target = state.at(state.axis - (axis < state.axis))
    return Decision(inputs=(state,), outputs=(target,) * len(node.outputs))


@shape_rule("ConcatV2")
def _concat_shape(table: SymbolTable, node: Node) -> Shapes:
    shapes, where = [t.shape for t in node.inputs[:-1]], node.inputs[-1].value
    known = [shape for shape in shapes if shape is not None]
    if where is None or len(known) < len(shapes) or not isinstance(where[0], int):
        return None
    axis = where[0] % len(known[0])
    joined: Size = 0
    for shape in known:
        joined = shape[axis] + joined
    return [(*known[0][:axis], joined, *known[0][axis + 1 :])]


@value_rule("ConcatV2")
def _concat_value(table: SymbolTable, node: Node) -> Shapes:
    values = [t.value for t in node.inputs[:-1]]
    if any(t.rank != 1 for t in node.inputs[:-1]) or any(value is None for value in values):
        return None
    return [tuple(number for value in values if value is not None for number in value)]


@matrix_rule("ConcatV2")
def _concat_matrix(node: Node) -> Matrix | None:
    arrays, axis = matrices_of(node.inputs[:-1]), node.inputs[-1].value
    if arrays is None or axis is None or not isinstance(axis[0], int):
        return None
    return np.concatenate(arrays, axis[0])


@equal_sizes_rule("ConcatV2")
def _sizes_beside(node: Node) -> Iterator[tuple[Size, Size]]:
    tensors, where = node.inputs[:-1], node.inputs[-1].value
    first = tensors[0].shape
    if first is None or where is None or not isinstance(where[0], int):
        return
    for tensor in tensors[1:]:
        for axis, sizes in enumerate(zip(first, tensor.shape or (), strict=False)):
            if axis != where[0] % len(first):
                yield sizes


@value_rule("ConcatOffset")
def _concat_offset(table: SymbolTable, node: Node) -> Shapes:
    """Where each of several shapes begins when they are joined along an axis."""
    where, shapes = node.inputs[0].value, [t.value for t in node.inputs[1:]]
    known = [shape for shape in shapes if shape is not None]
    if where is None or len(known) < len(shapes) or not isinstance(where[0], int):
        return None
    axis = where[0] % len(known[0])
    begin: Size = 0
    offsets: list[Shape | None] = []
    for shape in known:
        offsets.append(tuple(begin if k == axis else 0 for k in range(len(shape))))
        begin = shape[axis] + begin
    return offsets


@rule("ConcatV2", inputs=(ROWS, WHOLE))
def _concat(node: Node, states: Sequence[State]) -> Decision | None:
    where, tensors = node.inputs[-1].value, node.inputs[:-1]
    first = next((s for s in states[:-1] if isinstance(s, Sharded)), None)
    rank = tensors[0].rank
    if first is None or rank is None or not is_number(where):
        return None
    assert where is not None and isinstance(where[0], int)
    axis = where[0] % rank
    if axis != first.axis:
        if not all(is_shardable(t.shape, first) for t in tensors):
            return None
        return Decision(inputs=(*[first] * len(tensors), REPLICATED), outputs=(first,))
    return _concat_samples(node, states, axis)


def _concat_samples(node: Node, states: Sequence[State], axis: int) -> Decision | None:
    """Blocks of the batch behind one another: all with the same rows per sample."""
    wanted: list[State] = []
    blocks: Size = 0
    alone = next(s.with_blocks(axis, 1) for s in states if isinstance(s, Sharded))
    rows = set()
    for tensor, state in zip(node.inputs[:-1], states, strict=False):
        assert tensor.shape is not None
        one = state if isinstance(state, Sharded) and state.axis == axis else alone
        per_sample = rows_per_sample(tensor.shape[axis], one)
        if per_sample is None:
            return None
        rows.add(per_sample)
        wanted.append(one)
        blocks = one.outer + blocks
    if len(rows) != 1:
        return None
    return Decision(inputs=(*wanted, REPLICATED), outputs=(alone.with_blocks(axis, blocks),))


@shape_rule("Split")
def _split_shape(table: SymbolTable, node: Node) -> Shapes:
    where, shape = node.inputs[0].value, node.inputs[1].shape
    if shape is None or where is None or not isinstance(where[0], int):
        return None
    axis = where[0] % len(shape)
    part = divide(shape[axis], len(node.outputs))
    if part is None:
        part = table.new_symbol(node.outputs[0], axis)
    return [(*shape[:axis], part, *shape[axis + 1 :])] * len(node.outputs)


@shape_rule("SplitV")
def _split_sizes(table: SymbolTable, node: Node) -> Shapes:
    shape, sizes, where = node.inputs[0].shape, node.inputs[1].value, node.inputs[2].value
    if shape is None or sizes is None or where is None or not isinstance(where[0], int):
        return None
    axis = where[0] % len(shape)
    if not all(table.is_made_of_sizes(size) for size in sizes):
        # One of them may be -1, and then it is the rest.
        sizes = tuple(table.new_symbol(tensor, axis) for tensor in node.outputs)
    if -1 in sizes:
        rest: Size = shape[axis]
        for size in sizes:
            if size != -1:
                rest = rest - size
        sizes = tuple(rest if size == -1 else size for size in sizes)
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


@value_rule("Split", "SplitV")
def _split_value(table: SymbolTable, node: Node) -> Shapes:
    data = node.inputs[1 if node.op == "Split" else 0]
    if data.value is None or data.rank != 1:
        return None
    lengths = [None if t.shape is None else t.shape[0] for t in node.outputs]
    parts: list[Shape | None] = []
    begin = 0
    for length in lengths:
        if not isinstance(length, int) or begin + length > len(data.value):
            return None
        parts.append(data.value[begin : begin + length])
        begin += length
    return parts


@rule("Split", inputs=(WHOLE, ROWS))
@rule("SplitV", inputs=(ROWS, WHOLE, WHOLE))
def _split(node: Node, states: Sequence[State]) -> Decision | None:
    data = 1 if node.op == "Split" else 0
    where = node.inputs[0 if node.op == "Split" else 2].value
    state, shape = states[data], node.inputs[data].shape
    if shape is None or not isinstance(state, Sharded) or not is_number(where):
        return None
    assert where is not None and isinstance(where[0], int)
    axis = where[0] % len(shape)
    if axis != state.axis:
        inputs = [REPLICATED if k != data else state for k in range(len(states))]
        return Decision(inputs=tuple(inputs), outputs=(state,) * len(node.outputs))
    rows = rows_per_sample(shape[axis], state)
    if rows is None:
        return None
    targets = []
    for tensor in node.outputs:
        assert tensor.shape is not None
        blocks = divide(tensor.shape[axis], state.rows * rows)
        if blocks is None or has_batch(blocks):
            return None
        targets.append(state.with_blocks(axis, blocks))
    if node.op == "Split":
        return Decision(inputs=(REPLICATED, state), outputs=tuple(targets))
    parts = Numbers(tuple(state.in_part * rows * target.outer for target in targets))
    return Decision(inputs=(state, parts, REPLICATED), outputs=tuple(targets))


_TENSORS = {"Pack": slice(None), "ConcatV2": slice(-1), "Split": slice(1, None)}
"""Of the inputs those that are rearranged; of other operations the first."""


@partial_rule("Pack", "Unpack", inputs=PARTIALS)
@partial_rule("ConcatV2", inputs=(PARTIALS, WHOLE))
@partial_rule("Split", inputs=(WHOLE, PARTIALS))
@partial_rule("SplitV", inputs=(PARTIALS, WHOLE, WHOLE))
def rearranged_partial(node: Node, states: Sequence[State]) -> Decision | None:
    """Elements in other places: all tensors are partial, and positions are those of the whole."""
    found = set(states[_TENSORS.get(node.op, slice(1))])
    if len(found) != 1 or not isinstance(state := found.pop(), Partial):
        return None
    return Decision(inputs=tuple(states), outputs=(state,) * len(node.outputs))


@value_rule("DynamicStitch", "ParallelDynamicStitch")
def _stitch(table: SymbolTable, node: Node) -> Shapes:
    """Numbers at given places, the later ones last; with it a sum's gradient finds its shape."""
    count = len(node.inputs) // 2
    places, data = node.inputs[:count], node.inputs[count:]
    found: dict[int, Size] = {}
    for where, numbers in zip(places, data, strict=True):
        if where.value is None or numbers.value is None or where.rank != numbers.rank:
            return None
        for place, number in zip(where.value, numbers.value, strict=True):
            if not isinstance(place, int):
                return None
            found[place] = number
    if sorted(found) != list(range(len(found))):
        return None
    return [tuple(found[k] for k in range(len(found)))]


traits("ConcatV2 Pack Split SplitV Unpack", FREE)
traits("ConcatV2", Trait.OTHER_ROWS)
index_inputs("Pack", slice(None))
index_inputs("ConcatV2", slice(-1))
traits("DynamicPartition", Trait.SIZED_BY_DATA)
gathered("DynamicPartition", "The number of rows of its result is in the data.")
