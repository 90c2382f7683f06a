"""Tensors made of sizes: of one number, rows in order, copies, paddings; sizes as tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evener.graph.dims import Size, divide, has_batch, product
from evener.graph.nodes import Node, SymbolTable
from evener.graph.ops.elementwise import unary
from evener.graph.ops.registry import (
    LARGEST,
    LARGEST_VALUE,
    Matrix,
    Shapes,
    Trait,
    broadcast,
    first_batch_axis,
    given_by_input,
    matrix_of,
    matrix_of_numbers,
    matrix_rule,
    rows_by_axes,
    rule,
    shape_by_axes,
    shape_rule,
    traits,
    value_rule,
    with_axis,
)
from evener.graph.ops.states import (
    FIRST,
    PART_BATCH,
    PART_OFFSET,
    REPLICATED,
    ROWS,
    WHOLE,
    Decision,
    Numbers,
    Sharded,
    State,
    by_rows,
    integer,
    integers_of,
    is_shardable,
    known,
    numbers_of,
    part_sizes,
    rank_of,
    require,
    rows_per_sample,
    shape_of,
    sharded,
)


@value_rule("Fill")
def _fill_value(table: SymbolTable, node: Node) -> Shapes:
    shape, value = shape_of(node.outputs[0]), numbers_of(node.inputs[1])
    require(len(shape) <= 1)
    length = integer(shape[0]) if shape else 1
    require(length <= LARGEST_VALUE)
    return [value * length]


@matrix_rule("Fill")
def _fill_matrix(node: Node) -> Matrix | None:
    sizes, number = [*map(integer, shape_of(node.outputs[0]))], numbers_of(node.inputs[1])
    require(math.prod(sizes) <= LARGEST)
    return matrix_of_numbers(number * math.prod(sizes), sizes)


@rule("Fill", inputs=WHOLE)
def _fill(node: Node, states: Sequence[State]) -> Decision | None:
    shape = shape_of(node.outputs[0])
    target = known(first_batch_axis(shape))
    return Decision(inputs=(Numbers(part_sizes(shape, target)), REPLICATED), outputs=(target,))


@value_rule("ZerosLike", "OnesLike")
def _like_value(table: SymbolTable, node: Node) -> Shapes:
    shape = shape_of(node.outputs[0])
    require(len(shape) <= 1)
    return [(int(node.op == "OnesLike"),) * (integer(shape[0]) if shape else 1)]


@rule("BroadcastTo", inputs=(ROWS, WHOLE))
def _broadcast_to(node: Node, states: Sequence[State]) -> Decision | None:
    result, shape, state = shape_of(node.outputs[0]), shape_of(node.inputs[0]), states[0]
    if isinstance(state, Sharded):
        axis = state.axis + len(result) - len(shape)
        target = state.at(axis)
        require(result[axis] == shape[state.axis] and is_shardable(result, target))
    else:
        target = known(first_batch_axis(result))
        axis = target.axis - (len(result) - len(shape))
        require(axis < 0 or shape[axis] == 1)
    return Decision(inputs=(state, Numbers(part_sizes(result, target))), outputs=(target,))


@shape_rule("Range")
def _range_shape(table: SymbolTable, node: Node) -> Shapes:
    start, limit, step = (numbers_of(t) for t in node.inputs)
    stride = integer(step[0])
    require(stride >= 1)
    # The operation refuses a limit before the start.
    if isinstance(start[0], int) and isinstance(limit[0], int):
        return [(len(range(start[0], limit[0], stride)),)]
    length = known(divide(limit[0] - start[0], stride))
    return None if isinstance(length, int) else [(length,)]


@value_rule("Range")
def _range_value(table: SymbolTable, node: Node) -> Shapes:
    start, limit, step = (integers_of(t)[0] for t in node.inputs)
    span = range(start, limit, step)
    return [tuple(span)] if len(span) <= LARGEST_VALUE else None


@rule("Range", inputs=WHOLE)
def _range(node: Node, states: Sequence[State]) -> Decision | None:
    shape, (start,), (step,) = (
        shape_of(node.outputs[0]),
        numbers_of(node.inputs[0]),
        integers_of(node.inputs[2]),
    )
    require(not has_batch(start) and is_shardable(shape, FIRST))
    rows = known(rows_per_sample(shape[0]))
    begin = PART_OFFSET * rows * step + start
    return Decision(
        inputs=(Numbers((begin,)), Numbers((begin + PART_BATCH * rows * step,)), REPLICATED),
        outputs=(FIRST,),
    )


@shape_rule("Tile")
def _tile_shape(table: SymbolTable, node: Node) -> Shapes:
    pairs = zip(shape_of(node.inputs[0]), numbers_of(node.inputs[1]), strict=True)
    return [tuple(size * times for size, times in pairs)]


@value_rule("Tile")
def _tile_value(table: SymbolTable, node: Node) -> Shapes:
    value, times = (numbers_of(t) for t in node.inputs)
    require(node.inputs[0].rank == 1)
    count = integer(times[0])
    require(len(value) * count <= LARGEST_VALUE)
    return [value * count]


@rule("Tile", inputs=(ROWS, WHOLE))
def _tile(node: Node, states: Sequence[State]) -> Decision | None:
    shape, times, state = shape_of(node.inputs[0]), numbers_of(node.inputs[1]), states[0]
    result = shape_of(node.outputs[0])
    if isinstance(state, Sharded):
        # [a, b] tiled by 2 is [a, b, a, b]: twice as many blocks.
        require(not has_batch(times[state.axis]))
        target = state.in_blocks(state.axis, state.outer * times[state.axis])
        return Decision(inputs=(state, Numbers(times)), outputs=(target,))
    for axis, count in enumerate(times):
        if has_batch(count) and shape[axis] == 1 and is_shardable(result, Sharded(axis)):
            rows = known(rows_per_sample(count))
            local = (*times[:axis], PART_BATCH * rows, *times[axis + 1 :])
            return Decision(inputs=(REPLICATED, Numbers(local)), outputs=(Sharded(axis),))
    return None


@shape_rule("Pad", "PadV2", "MirrorPad", "MirrorPadGrad")
def _pad_shape(table: SymbolTable, node: Node) -> Shapes:
    pairs = zip(shape_of(node.inputs[0]), matrix_of(node.inputs[1]), strict=True)
    sign = -1 if node.op == "MirrorPadGrad" else 1
    return [tuple(size + (before + behind) * sign for size, (before, behind) in pairs)]


@value_rule("Pad", "PadV2")
def _pad_value(table: SymbolTable, node: Node) -> Shapes:
    value, pads = numbers_of(node.inputs[0]), matrix_of(node.inputs[1])
    fill = numbers_of(node.inputs[2]) if node.op == "PadV2" else (0,)
    require(node.inputs[0].rank == 1)
    before, behind = pads[0]
    before, behind = integer(before), integer(behind)
    require(before + len(value) + behind <= LARGEST_VALUE)
    return [fill * before + value + fill * behind]


@rule("Pad", "MirrorPad", "MirrorPadGrad", inputs=(ROWS, WHOLE))
@rule("PadV2", inputs=(ROWS, WHOLE, WHOLE))
def _pad(node: Node, states: Sequence[State]) -> Decision | None:
    shape, result, state = shape_of(node.inputs[0]), shape_of(node.outputs[0]), sharded(states[0])
    pads = matrix_of(node.inputs[1])[state.axis]
    require(result[state.axis] == shape[state.axis])
    require(all(isinstance(pad, int) and pad == 0 for pad in pads))
    return by_rows(node, state, state, needs_samples=node.op.startswith("Mirror"))


def _one_hot_axes(node: Node, rank: int) -> list[int | None]:
    return with_axis(rank, node.int_attr("axis"))


shape_rule("OneHot")(shape_by_axes(_one_hot_axes, lambda node: numbers_of(node.inputs[1])[0]))
rule("OneHot", inputs=(ROWS, WHOLE, WHOLE, WHOLE))(rows_by_axes(_one_hot_axes))
unary("OnesLike ZerosLike")
shape_rule.table(
    {
        "Empty Fill": given_by_input(0),
        "BroadcastTo": given_by_input(1),
        "Rank Size": lambda table, node: [()],
    }
)
value_rule.table(
    {
        "Shape ShapeN": lambda table, node: [t.shape for t in node.inputs],
        "Size": lambda table, node: [(product(shape_of(node.inputs[0])),)],
        "Rank": lambda table, node: [(rank_of(node.inputs[0]),)],
        "BroadcastArgs": lambda table, node: [broadcast([t.value for t in node.inputs])],
    }
)
traits("BroadcastTo Fill OnesLike Pad PadV2 Tile ZerosLike", Trait.FREE)
traits("BroadcastTo OnesLike ZerosLike", Trait.TOTAL)
traits("Fill OnesLike ZerosLike", Trait.EQUAL_ELEMENTS)
traits("BroadcastTo Tile", Trait.EVERY_ELEMENT)


@value_rule("BroadcastGradientArgs")
def _broadcast_gradient_args(table: SymbolTable, node: Node) -> Shapes:
    """Over which axes the gradient of each operand is summed.

    An axis counts where an operand has size 1 and the other has not. Where both are the same
    symbol, neither was broadcast. Where the sizes cannot be compared, nothing is known.
    """
    a, b = (numbers_of(t) for t in node.inputs)
    rank = max(len(a), len(b))
    full_a = (None,) * (rank - len(a)) + a
    full_b = (None,) * (rank - len(b)) + b
    over_a: list[Size] = []
    over_b: list[Size] = []
    for axis, (left, right) in enumerate(zip(full_a, full_b, strict=True)):
        # 8 and B: B is 8, or it is 1 and its gradient is summed.
        require(left == right or left in (None, 1) or right in (None, 1))
        if left == right != 1:
            continue
        if left in (None, 1):
            over_a.append(axis)
        if right in (None, 1):
            over_b.append(axis)
    return [tuple(over_a), tuple(over_b)]


@value_rule("InvertPermutation")
def _invert(table: SymbolTable, node: Node) -> Shapes:
    order = integers_of(node.inputs[0])
    return [tuple(order.index(k) for k in range(len(order)))]


@value_rule("ListDiff")
def _list_difference(table: SymbolTable, node: Node) -> Shapes:
    """The numbers of the first list that are not in the second, and their indices."""
    numbers, without = map(integers_of, node.inputs)
    kept = [index for index, number in enumerate(numbers) if number not in without]
    return [tuple(numbers[index] for index in kept), tuple(kept)]


traits("Shape ShapeN", Trait.FREE)
traits("ListDiff Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Where", Trait.SIZED_BY_DATA)
