"""The same elements in another shape or order: reshaped, transposed, joined, split, sorted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from evener.graph.dims import BATCH, Dim, Size, divide, evaluate, has_batch, product, symbols_of
from evener.graph.nodes import Node, SymbolTable
from evener.graph.ops.registry import (
    LARGEST_VALUE,
    AxesRule,
    Matrix,
    Shape,
    Shapes,
    Trait,
    beside,
    beside_last,
    equal_sizes_rule,
    index_inputs,
    leading,
    like_input,
    matrix_of,
    matrix_rule,
    partial_rule,
    rows_by_axes,
    rule,
    shape_by_axes,
    shape_rule,
    traits,
    value_rule,
    with_axis,
    without_axes,
    without_minus_one,
)
from evener.graph.ops.states import (
    FIRST,
    PARTIALS,
    REPLICATED,
    ROWS,
    WHOLE,
    Decision,
    Numbers,
    Partial,
    Sharded,
    State,
    axis_of,
    first_sharded,
    integer,
    integers_of,
    is_first,
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


@shape_rule("Reshape")
def _reshape_shape(table: SymbolTable, node: Node) -> Shapes:
    wanted, shape = numbers_of(node.inputs[1]), node.inputs[0].shape
    wanted = without_minus_one(table, node.outputs[0], wanted, shape)
    if -1 in wanted:
        open_axis = wanted.index(-1)
        rest = None
        if shape is not None:
            others = product(s for s in wanted if s != -1)
            rest = divide(_number(table, product(shape)), others)
            rest = divide(product(shape), others) if rest is None else rest
        if rest is None:
            rest = table.new_symbol(node.outputs[0], open_axis)
        wanted = (*wanted[:open_axis], rest, *wanted[open_axis + 1 :])
    return [wanted if shape is None else _with_samples(table, shape, wanted)]


def _number(table: SymbolTable, size: Size) -> Size:
    """Return a size as a number, where the step was traced for batches of one size."""
    if table.num_samples is None or symbols_of(size) - {"B"}:
        return size
    return evaluate(size, {"B": table.num_samples})


def _with_samples(table: SymbolTable, before: Shape, after: Shape) -> Shape:
    """Return a shape with the axis that counts samples, where a program gave its size as a number.

    Elements stay in their order, so it is the axis with as many of them in front and behind.
    """
    numbers = [_number(table, size) for size in before]
    counting = [axis for axis, size in enumerate(before) if symbols_of(size)]
    is_given = all(isinstance(size, int) for size in (*numbers, *after))
    if table.num_samples is None or len(counting) != 1 or not is_given:
        return after
    (counted,) = counting
    rows = divide(before[counted], BATCH)
    front, behind = product(numbers[:counted]), product(numbers[counted + 1 :])
    if rows is not None:
        for axis, outer, inner in _factors(after, front, table.num_samples, rows * behind):
            return (*after[:axis], BATCH * outer * inner, *after[axis + 1 :])
    return after


def _factors(
    after: Shape, front: Size, rows: Size, behind: Size
) -> Iterator[tuple[int, Size, Size]]:
    """Yield axes ``[outer, rows, inner]`` with as many elements in front and behind the rows."""
    for axis, size in enumerate(after):
        outer = divide(front, product(after[:axis]))
        inner = divide(behind, product(after[axis + 1 :]))
        if outer is not None and inner is not None and size == rows * outer * inner:
            yield axis, outer, inner


@value_rule("Reshape")
def _reshape_value(table: SymbolTable, node: Node) -> Shapes:
    source = node.inputs[0]
    require(node.outputs[0].rank in (0, 1) and source.dtype.is_integer)
    if source.value is not None:
        return [source.value]
    array = matrix_of(source)
    require(array.size <= LARGEST_VALUE)
    return [tuple(n if isinstance(n, Dim) else int(n) for n in array.ravel())]


@matrix_rule("Reshape", "ExpandDims")
def _reshape_matrix(node: Node) -> Matrix | None:
    array, sizes = matrix_of(node.inputs[0]), [*map(integer, shape_of(node.outputs[0]))]
    require(math.prod(sizes) == array.size)
    return array.reshape(sizes)


@equal_sizes_rule("Reshape")
def _equal_sizes(node: Node) -> Iterator[tuple[Size, Size]]:
    before, after = node.inputs[0].shape, node.inputs[1].value
    if before is not None and after is not None and -1 not in after:
        yield product(before), product(after)


@rule("Reshape", inputs=(ROWS, WHOLE))
def _reshape(node: Node, states: Sequence[State]) -> Decision | None:
    before, after, state = shape_of(node.inputs[0]), shape_of(node.outputs[0]), sharded(states[0])
    target = _reshaped(before, after, state)
    return Decision(inputs=(state, Numbers(part_sizes(after, target))), outputs=(target,))


def _reshaped(before: Shape, after: Shape, state: Sharded) -> Sharded:
    """Return where the samples are after a reshape, if an axis holds them by itself.

    ::

        before   P , [outer, B, inner] , Q        product of the axes before and behind: P, Q
        after    P', [outer', B, inner'] , Q'     the same axis if P*outer = P'*outer'
                                                            and inner*Q = inner'*Q'
    """
    rows = known(rows_per_sample(before[state.axis], state))
    front = product(before[: state.axis]) * state.outer
    behind = rows * product(before[state.axis + 1 :])
    factors = _factors(after, front, state.rows, behind)
    targets = (state.in_blocks(axis, outer) for axis, outer, _ in factors)
    return known(next((target for target in targets if is_shardable(after, target)), None))


def _squeezed(node: Node, rank: int) -> list[int]:
    """Return the axes that are left, where a node names those that vanish."""
    gone = {axis % rank for axis in node.ints_attr("squeeze_dims")}
    require(len(gone) > 0)
    return without_axes(rank, gone)


_AXES: dict[str, AxesRule] = {
    "ExpandDims": lambda node, rank: with_axis(rank, axis_of(node.inputs[1], rank + 1)),
    "Squeeze": _squeezed,
    "Transpose": lambda node, rank: numbers_of(node.inputs[1]),
    "ConjugateTranspose": lambda node, rank: numbers_of(node.inputs[1]),
    "Unpack": lambda node, rank: without_axes(rank, {node.int_attr("axis") % rank}),
}
for _op, _axes in _AXES.items():
    shape_rule(_op)(shape_by_axes(_axes))
    rule(_op, inputs=ROWS if _op in ("Squeeze", "Unpack") else (ROWS, WHOLE))(rows_by_axes(_axes))
value_rule.table(
    {
        "ExpandDims Squeeze": lambda table, node: [
            node.inputs[0].value if node.outputs[0].rank in (0, 1) else None
        ]
    }
)
matrix_rule.table(
    {"Transpose": lambda node: matrix_of(node.inputs[0]).transpose(integers_of(node.inputs[1]))}
)
traits("Reshape ExpandDims Squeeze", Trait.VIEW | Trait.FREE | Trait.TOTAL | Trait.RESHAPES)
traits("Transpose", Trait.FREE | Trait.TOTAL)
index_inputs("ExpandDims Reshape Squeeze Transpose", slice(1))


@shape_rule("Pack")
def _pack_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = known(next((t.shape for t in node.inputs if t.shape is not None), None))
    axes = with_axis(len(shape), node.int_attr("axis"))
    return [tuple(len(node.inputs) if k is None else shape[k] for k in axes)]


@value_rule("Pack")
def _pack_value(table: SymbolTable, node: Node) -> Shapes:
    require(all(t.rank == 0 for t in node.inputs))
    return [tuple(numbers_of(t)[0] for t in node.inputs)]


@matrix_rule("Pack")
def _pack_matrix(node: Node) -> Matrix | None:
    arrays = [matrix_of(tensor) for tensor in node.inputs]
    require(len({array.shape for array in arrays}) == 1)
    return np.stack(arrays, node.int_attr("axis"))


@rule("Pack", inputs=ROWS)
def _pack(node: Node, states: Sequence[State]) -> Decision | None:
    first, axes = first_sharded(states), with_axis(rank_of(node.inputs[0]), node.int_attr("axis"))
    require(all(is_shardable(t.shape, first) for t in node.inputs))
    target = first.at(axes.index(first.axis))
    return Decision(inputs=(first,) * len(states), outputs=(target,))


@equal_sizes_rule("Pack")
def _equal_packed(node: Node) -> Iterator[tuple[Size, Size]]:
    known = [tensor.shape for tensor in node.inputs if tensor.shape is not None]
    for shape in known[1:]:
        yield from zip(known[0], shape, strict=False)


@value_rule("Unpack")
def _unpack_value(table: SymbolTable, node: Node) -> Shapes:
    value = numbers_of(node.inputs[0])
    require(node.inputs[0].rank == 1)
    return [(number,) for number in value]


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
    require(all(t.rank == 1 for t in node.inputs[:-1]))
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
    require(all(is_shardable(t.shape, first) for t in tensors))
    return Decision(inputs=(*[first] * len(tensors), REPLICATED), outputs=(first,))


def _concat_samples(node: Node, states: Sequence[State], axis: int) -> Decision | None:
    """Blocks of the batch behind one another: all with the same rows per sample."""
    wanted: list[State] = []
    blocks: Size = 0
    alone = first_sharded(states).in_blocks(axis, 1)
    rows = set()
    for tensor, held in zip(node.inputs[:-1], states, strict=False):
        state = held if isinstance(held, Sharded) and held.axis == axis else alone
        rows.add(known(rows_per_sample(shape_of(tensor)[axis], state)))
        wanted.append(state)
        blocks = state.outer + blocks
    require(len(rows) == 1)
    return Decision(inputs=(*wanted, REPLICATED), outputs=(alone.in_blocks(axis, blocks),))


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
    require(data.rank == 1)
    parts: list[Shape | None] = []
    begin = 0
    for tensor in node.outputs:
        length = integer(shape_of(tensor)[0])
        require(begin + length <= len(value))
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
    rows = known(rows_per_sample(shape[axis], state))
    targets = []
    for tensor in node.outputs:
        blocks = known(divide(shape_of(tensor)[axis], state.rows * rows))
        require(not has_batch(blocks))
        targets.append(state.in_blocks(axis, blocks))
    if node.op == "Split":
        return Decision(inputs=(REPLICATED, state), outputs=tuple(targets))
    parts = Numbers(tuple(state.in_part * rows * target.outer for target in targets))
    return Decision(inputs=(state, parts, REPLICATED), outputs=tuple(targets))


# Of the inputs those that are rearranged; of other operations the first.
_TENSORS = {"Pack": slice(None), "ConcatV2": slice(-1), "Split": slice(1, None)}


@partial_rule("Pack", "Unpack", "Squeeze", inputs=PARTIALS)
@partial_rule(
    "ConcatV2", "ExpandDims", "Reshape", "ReverseV2", "Transpose", inputs=(PARTIALS, WHOLE)
)
@partial_rule("Split", inputs=(WHOLE, PARTIALS))
@partial_rule("SplitV", inputs=(PARTIALS, WHOLE, WHOLE))
def rearranged_partial(node: Node, states: Sequence[State]) -> Decision | None:
    """Elements in another order: all tensors are partial, and positions are those of the whole."""
    [state, *others] = states[_TENSORS.get(node.op, slice(1))]
    require(isinstance(state, Partial) and all(other == state for other in others))
    return Decision(inputs=tuple(states), outputs=(state,) * len(node.outputs))


@value_rule("DynamicStitch", "ParallelDynamicStitch")
def _stitch(table: SymbolTable, node: Node) -> Shapes:
    """Numbers at given positions, the later ones last; with it a sum's gradient finds its shape."""
    count = len(node.inputs) // 2
    positions, data = node.inputs[:count], node.inputs[count:]
    stitched: dict[int, Size] = {}
    for where, numbers in zip(positions, data, strict=True):
        require(where.rank == numbers.rank)
        stitched.update(zip(integers_of(where), numbers_of(numbers), strict=True))
    require(sorted(stitched) == list(range(len(stitched))))
    return [tuple(stitched[k] for k in range(len(stitched)))]


traits("ConcatV2 Pack Split SplitV Unpack", Trait.FREE)
traits("ConcatV2", Trait.OTHER_ROWS)
index_inputs("Pack", slice(None))
index_inputs("ConcatV2", slice(-1))
traits("DynamicPartition", Trait.SIZED_BY_DATA)


@rule("ReverseV2", inputs=(ROWS, WHOLE))
@rule("Roll", inputs=(ROWS, WHOLE, WHOLE))
@rule("Cumsum", "Cumprod", "CumulativeLogsumexp", inputs=(ROWS, WHOLE))
def _along_axes(node: Node, states: Sequence[State]) -> Decision | None:
    rank = rank_of(node.inputs[0])
    return beside(node, states, [axis % rank for axis in integers_of(node.inputs[-1])])


@rule("ReverseSequence", inputs=ROWS)
def _reverse_sequence(node: Node, states: Sequence[State]) -> Decision | None:
    state = Sharded(node.int_attr("batch_dim"))
    require(is_shardable(node.inputs[0].shape, state) and node.int_attr("seq_dim") != state.axis)
    return Decision(inputs=(state, FIRST), outputs=(state,))


@shape_rule("TopKV2", "TopK")
def _top_k_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = shape_of(node.inputs[0])
    count = numbers_of(node.inputs[1]) if node.op == "TopKV2" else (node.int_attr("k"),)
    require(len(shape) > 0)
    return [(*shape[:-1], *count)] * 2


@rule("InTopKV2", inputs=(ROWS, ROWS, WHOLE))
@rule("InTopK", inputs=ROWS)
def _in_top_k(node: Node, states: Sequence[State]) -> Decision | None:
    state = first_sharded([state for state in states[:2] if is_first(state)])
    return Decision(inputs=(state, state, *[REPLICATED] * (len(states) - 2)), outputs=(state,))


@rule("LowerBound", "UpperBound", inputs=ROWS)
def _search(node: Node, states: Sequence[State]) -> Decision | None:
    """Rows of both matrices belong together; of one row, values are looked up by themselves."""
    sorted_rows, values = states
    both = (t.shape for t in node.inputs)
    if Sharded(0) in states and all(is_shardable(shape, FIRST) for shape in both):
        return Decision(inputs=(FIRST, FIRST), outputs=(FIRST,))
    if isinstance(values, Sharded) and values.axis == 1 and not isinstance(sorted_rows, Sharded):
        return Decision(inputs=(REPLICATED, values), outputs=(values,))
    return None


rule("TopKV2", inputs=(ROWS, WHOLE))(beside_last(1))
rule("TopK", inputs=ROWS)(beside_last(1))
shape_rule.table(
    {
        "Cumprod Cumsum CumulativeLogsumexp Reverse ReverseSequence ReverseV2 Roll": like_input(0),
        "InTopK InTopKV2 LowerBound UpperBound": like_input(1),
    }
)
equal_sizes_rule("InTopK", "InTopKV2")(leading)
