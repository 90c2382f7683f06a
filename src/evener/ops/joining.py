"""Tensors that are joined, stacked, split and taken apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evener.graph.dims import Size, divide, has_batch
from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.decision import PARTIALS, ROWS, WHOLE, Decision
from evener.ops.known import (
    axis_of,
    first_sharded,
    integers_of,
    numbers_of,
    rank_of,
    shape_of,
    sharded,
)
from evener.ops.registry import (
    FREE,
    Matrix,
    Shape,
    Shapes,
    Trait,
    equal_sizes_rule,
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
from evener.ops.values import matrix_of


@shape_rule("Pack")
def _pack_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = next((t.shape for t in node.inputs if t.shape is not None), None)
    if shape is None:
        return None
    axis = node.int_attr("axis") % (len(shape) + 1)
    return [(*shape[:axis], len(node.inputs), *shape[axis:])]


@value_rule("Pack")
def _pack_value(table: SymbolTable, node: Node) -> Shapes:
    if any(t.rank != 0 for t in node.inputs):
        return None
    return [tuple(numbers_of(t)[0] for t in node.inputs)]


@matrix_rule("Pack")
def _pack_matrix(node: Node) -> Matrix | None:
    arrays = [matrix_of(tensor) for tensor in node.inputs]
    is_even = len({array.shape for array in arrays}) == 1
    return np.stack(arrays, node.int_attr("axis")) if is_even else None


@rule("Pack", inputs=ROWS)
def _pack(node: Node, states: Sequence[State]) -> Decision | None:
    first, rank = first_sharded(states), rank_of(node.inputs[0])
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
    shape = shape_of(node.inputs[0])
    axis = node.int_attr("axis") % len(shape)
    return [(*shape[:axis], *shape[axis + 1 :])] * len(node.outputs)


@value_rule("Unpack")
def _unpack_value(table: SymbolTable, node: Node) -> Shapes:
    value = numbers_of(node.inputs[0])
    return [(number,) for number in value] if node.inputs[0].rank == 1 else None


@rule("Unpack", inputs=ROWS)
def _unpack(node: Node, states: Sequence[State]) -> Decision | None:
    state, rank = sharded(states[0]), rank_of(node.inputs[0])
    axis = node.int_attr("axis") % rank
    if axis == state.axis:
        return None
    target = state.at(state.axis - (axis < state.axis))
    return Decision(inputs=(state,), outputs=(target,) * len(node.outputs))


@shape_rule("ConcatV2")
def _concat_shape(table: SymbolTable, node: Node) -> Shapes:
    shapes = [shape_of(t) for t in node.inputs[:-1]]
    axis = axis_of(node.inputs[-1], len(shapes[0]))
    joined: Size = 0
    for shape in shapes:
        joined = shape[axis] + joined
    return [(*shapes[0][:axis], joined, *shapes[0][axis + 1 :])]


@value_rule("ConcatV2")
def _concat_value(table: SymbolTable, node: Node) -> Shapes:
    if any(t.rank != 1 for t in node.inputs[:-1]):
        return None
    return [tuple(number for t in node.inputs[:-1] for number in numbers_of(t))]


@matrix_rule("ConcatV2")
def _concat_matrix(node: Node) -> Matrix | None:
    (axis,) = integers_of(node.inputs[-1])
    return np.concatenate([matrix_of(tensor) for tensor in node.inputs[:-1]], axis)


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
    """Offsets of several shapes that are joined along an axis."""
    shapes = [numbers_of(t) for t in node.inputs[1:]]
    axis = axis_of(node.inputs[0], len(shapes[0]))
    begin: Size = 0
    offsets: list[Shape | None] = []
    for shape in shapes:
        offsets.append(tuple(begin if k == axis else 0 for k in range(len(shape))))
        begin = shape[axis] + begin
    return offsets


@rule("ConcatV2", inputs=(ROWS, WHOLE))
def _concat(node: Node, states: Sequence[State]) -> Decision | None:
    first, tensors = first_sharded(states[:-1]), node.inputs[:-1]
    axis = axis_of(node.inputs[-1], rank_of(tensors[0]))
    if axis == first.axis:
        return _concat_samples(node, states, axis)
    if not all(is_shardable(t.shape, first) for t in tensors):
        return None
    return Decision(inputs=(*[first] * len(tensors), REPLICATED), outputs=(first,))


def _concat_samples(node: Node, states: Sequence[State], axis: int) -> Decision | None:
    """Blocks of the batch behind one another: all with the same rows per sample."""
    wanted: list[State] = []
    blocks: Size = 0
    alone = first_sharded(states).with_blocks(axis, 1)
    rows = set()
    for tensor, given in zip(node.inputs[:-1], states, strict=False):
        state = given if isinstance(given, Sharded) and given.axis == axis else alone
        per_sample = rows_per_sample(shape_of(tensor)[axis], state)
        if per_sample is None:
            return None
        rows.add(per_sample)
        wanted.append(state)
        blocks = state.outer + blocks
    if len(rows) != 1:
        return None
    return Decision(inputs=(*wanted, REPLICATED), outputs=(alone.with_blocks(axis, blocks),))


@shape_rule("Split")
def _split_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = shape_of(node.inputs[1])
    axis = axis_of(node.inputs[0], len(shape))
    part = divide(shape[axis], len(node.outputs))
    if part is None:
        part = table.new_symbol(node.outputs[0], axis)
    return [(*shape[:axis], part, *shape[axis + 1 :])] * len(node.outputs)


@shape_rule("SplitV")
def _split_sizes(table: SymbolTable, node: Node) -> Shapes:
    shape, sizes = shape_of(node.inputs[0]), numbers_of(node.inputs[1])
    axis = axis_of(node.inputs[2], len(shape))
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
    value = numbers_of(data)
    if data.rank != 1:
        return None
    parts: list[Shape | None] = []
    begin = 0
    for tensor in node.outputs:
        length = shape_of(tensor)[0]
        if not isinstance(length, int) or begin + length > len(value):
            return None
        parts.append(value[begin : begin + length])
        begin += length
    return parts


@rule("Split", inputs=(WHOLE, ROWS))
@rule("SplitV", inputs=(ROWS, WHOLE, WHOLE))
def _split(node: Node, states: Sequence[State]) -> Decision | None:
    data, where = (1, 0) if node.op == "Split" else (0, 2)
    state, shape = sharded(states[data]), shape_of(node.inputs[data])
    axis = axis_of(node.inputs[where], len(shape))
    if axis != state.axis:
        inputs = [REPLICATED if k != data else state for k in range(len(states))]
        return Decision(inputs=tuple(inputs), outputs=(state,) * len(node.outputs))
    rows = rows_per_sample(shape[axis], state)
    if rows is None:
        return None
    targets = []
    for tensor in node.outputs:
        blocks = divide(shape_of(tensor)[axis], state.rows * rows)
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
    """Elements in another order: all tensors are partial, and positions are those of the whole."""
    found = set(states[_TENSORS.get(node.op, slice(1))])
    if len(found) != 1 or not isinstance(state := found.pop(), Partial):
        return None
    return Decision(inputs=tuple(states), outputs=(state,) * len(node.outputs))


@value_rule("DynamicStitch", "ParallelDynamicStitch")
def _stitch(table: SymbolTable, node: Node) -> Shapes:
    """Numbers at given positions, the later ones last; with it a sum's gradient finds its shape."""
    count = len(node.inputs) // 2
    positions, data = node.inputs[:count], node.inputs[count:]
    found: dict[int, Size] = {}
    for where, numbers in zip(positions, data, strict=True):
        if where.value is None or numbers.value is None or where.rank != numbers.rank:
            return None
        for index, number in zip(where.value, numbers.value, strict=True):
            if not isinstance(index, int):
                return None
            found[index] = number
    if sorted(found) != list(range(len(found))):
        return None
    return [tuple(found[k] for k in range(len(found)))]


traits("ConcatV2 Pack Split SplitV Unpack", FREE)
traits("ConcatV2", Trait.OTHER_ROWS)
index_inputs("Pack", slice(None))
index_inputs("ConcatV2", slice(-1))
traits("DynamicPartition", Trait.SIZED_BY_DATA)
