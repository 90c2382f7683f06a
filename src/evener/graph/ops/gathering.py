"""Rows that are taken from a table, or written to one; sums by labels, and counts.

A program often counts the samples to say which row it means::

    tf.gather_nd(x, tf.stack([tf.range(batch), label], 1))      row k of x for sample k
    flat index = k * width + position, position < width         the gradient of top_k

Such positions need no rows of other samples. What comes from the data is not certain to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from evener.graph.dims import BATCH, Size, divide, product
from evener.graph.functions import FunctionBuilder
from evener.graph.nodes import Node, SymbolTable, Tensor
from evener.graph.ops.registry import (
    IndexLimit,
    Shape,
    Shapes,
    Trait,
    all_first,
    equal_sizes_rule,
    given_by_input,
    has_trait,
    index_limit_rule,
    leading,
    like_input,
    or_none,
    rule,
    shape_rule,
    traits,
    value_rule,
)
from evener.graph.ops.slicing import slices
from evener.graph.ops.states import (
    FIRST,
    PART_OFFSET,
    REPLICATED,
    ROWS,
    SUM,
    WHOLE,
    Decision,
    Lower,
    Numbers,
    Partial,
    Sharded,
    State,
    axis_of,
    by_rows,
    first_sharded,
    integer,
    integers_of,
    is_shardable,
    known,
    numbers_of,
    part_sizes,
    rank_of,
    require,
    shape_of,
    sharded,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """Integers between ``k * step`` and ``k * step + slack`` for sample k."""

    axis: int  # The axis of the tensor that counts samples, with all rows of a sample together
    step: int  # The distance from sample to sample
    slack: int  # The largest distance from the first position of the sample


def in_own_rows(tensor: Tensor) -> bool:
    return own_rows(tensor) == OwnRows(axis=0, step=1, slack=0)


@or_none
def own_rows(tensor: Tensor) -> OwnRows | None:
    """Return within which rows of their samples the numbers of a tensor are, if it is certain."""
    node = tensor.node
    if node.op == "Range":
        start, (limit,), (step,) = (numbers_of(t) for t in node.inputs)
        require(start == (0,) and integer(step) >= 1 and limit == BATCH * step)
        return OwnRows(axis=0, step=integer(step), slack=0)
    if has_trait(node, Trait.COPY) or (node.op == "Cast" and tensor.dtype.size >= 4):
        return own_rows(node.inputs[0])
    if node.op in ("Tile", "BroadcastTo"):
        return _broadcast(node, node.inputs[0])
    if has_trait(node, Trait.RESHAPES) or _takes_all(node):
        return _reshaped(node)
    if node.op == "Transpose":
        own, axes = known(own_rows(node.inputs[0])), numbers_of(node.inputs[1])
        return replace(own, axis=axes.index(own.axis)) if own.axis in axes else None
    if node.op in ("Add", "AddV2", "Mul"):
        return _computed(node, *node.inputs) or _computed(node, *reversed(node.inputs))
    if node.op == "SelectV2":
        # As `tf.vectorized_map` makes them: the first row where it is the only one.
        condition = node.inputs[0].node
        has_others = [t.value for t in condition.inputs] == [(BATCH,), (1,)]
        if condition.op == "Greater" and has_others and node.inputs[2].value == (0,):
            return _broadcast(node, node.inputs[1])
    return None


def _takes_all(node: Node) -> bool:
    if node.op != "StridedSlice":
        return node.op == "Pack" and len(node.inputs) == 1
    shape = node.inputs[0].shape
    taken = None if shape is None else slices(node, shape)
    return taken is not None and all(rows is None or rows.is_whole for rows in taken)


def _reshaped(node: Node) -> OwnRows | None:
    """Return the rows where as many axes are in front of the samples, all of a sample together."""
    before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    own = known(own_rows(node.inputs[0]))
    require(divide(product(after), BATCH) == divide(product(before), BATCH))
    front = product(before[: own.axis])
    for axis, size in enumerate(after):
        if divide(size, BATCH) is not None and product(after[:axis]) == front:
            return replace(own, axis=axis)
    return None


def _broadcast(node: Node, own: Tensor) -> OwnRows | None:
    """Return the rows of an input along the axes of the result, if it is not repeated there."""
    rows, result, shape = known(own_rows(own)), shape_of(node.outputs[0]), shape_of(own)
    axis = rows.axis + len(result) - len(shape)
    return replace(rows, axis=axis) if result[axis] == shape[rows.axis] else None


@or_none
def _computed(node: Node, own: Tensor, other: Tensor) -> OwnRows | None:
    rows = known(_broadcast(node, own))
    if node.op == "Mul":
        times = integer(_everywhere(other))
        require(times >= 1)
        return replace(rows, step=rows.step * times, slack=rows.slack * times)
    return replace(rows, slack=rows.slack + known(largest(other)))


_LIKE = {"OnesLike": 1, "ZerosLike": 0}


def _everywhere(tensor: Tensor) -> Size | None:
    """Return the number that all elements of a tensor are, if it is certain."""
    if tensor.node.op in _LIKE:
        return _LIKE[tensor.node.op]
    if tensor.node.op == "Fill":
        return _everywhere(tensor.node.inputs[1])
    numbers = set(tensor.value or ())
    return numbers.pop() if len(numbers) == 1 else None


# Operations that repeat, move and leave out numbers of their first input.
_OF_THE_SAME_NUMBERS = frozenset({"BroadcastTo", "Slice", "StridedSlice", "Tile", "Transpose"})


def largest(tensor: Tensor) -> int | None:
    node = tensor.node
    if tensor.value:
        numbers = [number for number in tensor.value if isinstance(number, int) and number >= 0]
        return max(numbers) if len(numbers) == len(tensor.value) else None
    if node.op in _LIKE:
        return _LIKE[node.op]
    if node.op == "Fill":
        return largest(node.inputs[1])
    if has_trait(node, Trait.COPY | Trait.RESHAPES) or node.op in _OF_THE_SAME_NUMBERS:
        return largest(node.inputs[0])
    if node.op == "Cast":
        is_integer = node.inputs[0].dtype.is_integer and tensor.dtype.size >= 4
        return largest(node.inputs[0]) if is_integer else None
    shape = node.inputs[0].shape if node.inputs else None
    size: Size | None = None
    if node.op in ("TopKV2", "TopK") and tensor.index == 1 and shape:
        size = shape[-1]
    elif node.op in ("ArgMax", "ArgMin") and shape and node.inputs[1].value is not None:
        axis = node.inputs[1].value[0]
        size = shape[axis] if isinstance(axis, int) else None
    return size - 1 if isinstance(size, int) else None


def from_own_rows(index: int, *, step: int = 1, depth: int = 0) -> Lower:
    """Return the operation with positions that count from the part's first row."""

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        dtype = node.inputs[index].dtype
        before = PART_OFFSET * step
        if depth > 1:
            first = builder.vector([before, *[0] * (depth - 1)], dtype)
        else:
            first = builder.number(before, dtype)
        local = builder.op("Sub", [inputs[index], first], {"T": dtype})
        return builder.copy(
            node.op, node.name, [*inputs[:index], *local, *inputs[index + 1 :]], node.attrs
        )

    return lower


def _has_batch(states: Sequence[State]) -> bool:
    return any(isinstance(state, Sharded) and state.rows == BATCH for state in states)


def _at_own(
    node: Node, index: int, *updates: Tensor, table: Tensor
) -> tuple[Sharded, Lower] | None:
    """Return the state of positions in rows of the samples, and how the parts compute the node."""
    positions = node.inputs[index]
    own, depth = _first_of_positions(positions), (positions.shape or (None,))[-1]
    if own is None or not isinstance(depth, int) or not _has_rows(table, own):
        return None
    state = Sharded(own.axis)
    if not all(is_shardable(tensor.shape, state) for tensor in (positions, *updates)):
        return None
    return state, from_own_rows(index, step=own.step, depth=depth)


def _first_of_positions(positions: Tensor) -> OwnRows | None:
    """Return the rows of the first number of every position, along the last axis."""
    node, rank = positions.node, positions.rank
    if rank is None:
        return None
    while has_trait(node, Trait.COPY) or (node.op == "Cast" and positions.dtype.size >= 4):
        positions = node.inputs[0]
        node = positions.node
    if node.op == "Pack" and node.int_attr("axis") in (-1, rank - 1):
        first: Tensor | None = node.inputs[0]
    else:
        if node.op == "ConcatV2" and node.inputs[-1].value in ((-1,), (rank - 1,)):
            positions = node.inputs[0]
        first = positions if (positions.shape or ())[-1:] == (1,) else None
    own = None if first is None else own_rows(first)
    return own if own is not None and own.axis < rank - 1 else None


def _has_rows(table: Tensor, own: OwnRows) -> bool:
    return own.slack < own.step and bool(table.shape) and table.shape[0] == BATCH * own.step


@shape_rule("GatherV2")
def _gather_shape(table: SymbolTable, node: Node) -> Shapes:
    data, indices = (shape_of(t) for t in node.inputs[:2])
    at, shared = axis_of(node.inputs[2], len(data)), node.int_attr("batch_dims")
    return [(*data[:at], *indices[shared:], *data[at + 1 :])]


@value_rule("GatherV2")
def _gather_value(table: SymbolTable, node: Node) -> Shapes:
    value, positions = numbers_of(node.inputs[0]), integers_of(node.inputs[1])
    require(node.inputs[0].rank == 1 and all(0 <= k < len(value) for k in positions))
    return [tuple(value[k] for k in positions)]


@rule("GatherV2", inputs=(ROWS, ROWS, WHOLE))
@rule("Gather", inputs=ROWS)
def _gather(node: Node, states: Sequence[State]) -> Decision | None:
    """Rows of a table that all parts have, or of every sample's own table."""
    data, indices = states[0], states[1]
    shape, positions = shape_of(node.inputs[0]), shape_of(node.inputs[1])
    is_new = node.op == "GatherV2"
    axis = axis_of(node.inputs[2], len(shape)) if is_new else 0
    shared = node.int_attr("batch_dims") if is_new else 0
    others = [REPLICATED] * (len(states) - 2)
    for state in (data, indices):
        if isinstance(state, Sharded) and state.axis < shared:
            require(is_shardable(shape, state) and is_shardable(positions, state))
            return Decision(inputs=(state, state, *others), outputs=(state,))
    if isinstance(indices, Sharded):
        is_by_rows = is_new and axis == shared == 0 and indices.rows == BATCH
        if is_by_rows and in_own_rows(node.inputs[1]) and shape[0] == BATCH:
            if all_first(node.inputs[:2]):
                wanted = (FIRST, FIRST, REPLICATED)
                return Decision(inputs=wanted, outputs=(FIRST,), lower=from_own_rows(1))
        target = indices.at(axis + indices.axis - shared)
        return Decision(inputs=(REPLICATED, indices, *others), outputs=(target,))
    data = sharded(data)
    require(data.axis != axis)
    moved = data.axis if data.axis < axis else data.axis + len(positions) - shared - 1
    return Decision(inputs=(data, REPLICATED, *others), outputs=(data.at(moved),))


@equal_sizes_rule("GatherV2")
def _equal_sizes(node: Node) -> Iterator[tuple[Size, Size]]:
    data, indices = (tensor.shape for tensor in node.inputs[:2])
    shared = node.int_attr("batch_dims")
    yield from zip((data or ())[:shared], (indices or ())[:shared], strict=False)


index_limit_rule.table(
    {
        "ResourceGather": lambda node, shapes: _at_axis(node, shapes.get(node.inputs[0]), (0,)),
        "UnsortedSegmentSum": lambda node, shapes: _at_axis(node, node.inputs[2].value, (0,)),
        "GatherV2": lambda node, shapes: _at_axis(node, node.inputs[0].shape, node.inputs[2].value),
    }
)


def _at_axis(node: Node, sizes: Shape | None, axes: Shape | None) -> IndexLimit:
    axis = axes[0] if axes else None
    return node.inputs[1], sizes[axis] if sizes and isinstance(axis, int) else None


@shape_rule("GatherNd")
def _gather_nd_shape(table: SymbolTable, node: Node) -> Shapes:
    data, indices = map(shape_of, node.inputs)
    require(len(indices) > 0)
    return [(*indices[:-1], *data[integer(indices[-1]) :])]


@rule("GatherNd", inputs=ROWS)
def _gather_nd(node: Node, states: Sequence[State]) -> Decision | None:
    indices, rank = sharded(states[1]), rank_of(node.inputs[1])
    require(indices.axis != rank - 1)
    own = _at_own(node, 1, table=node.inputs[0]) if indices.rows == BATCH else None
    if own is None:
        return Decision(inputs=(REPLICATED, indices), outputs=(indices,))
    state, lower = own
    return Decision(inputs=(FIRST, state), outputs=(state,), lower=lower)


SCATTERS = [f"TensorScatter{name}" for name in ("Add", "Sub", "Update", "Max", "Min")]


@rule("ScatterNd", inputs=(ROWS, ROWS, WHOLE))
def _scatter_nd(node: Node, states: Sequence[State]) -> Decision | None:
    """Rows are added to zeros, so every part adds its own."""
    result = node.outputs[0]
    own = _at_own(node, 0, node.inputs[1], table=result) if _has_batch(states) else None
    if own is not None:
        state, lower = own
        sizes = Numbers(part_sizes(shape_of(result), FIRST))
        return Decision(inputs=(state, state, sizes), outputs=(FIRST,), lower=lower)
    rank = rank_of(node.inputs[0])
    for state in states[:2]:
        if isinstance(state, Sharded) and state.axis < rank - 1:
            if all(is_shardable(t.shape, state) for t in node.inputs[:2]):
                return Decision(inputs=(state, state, REPLICATED), outputs=(SUM,))
    return None


@rule(*SCATTERS, inputs=ROWS)
def _scatter(node: Node, states: Sequence[State]) -> Decision | None:
    """Positions are in rows of their sample, or along other axes and the same for all samples."""
    own = _at_own(node, 1, node.inputs[2], table=node.inputs[0]) if _has_batch(states) else None
    if own is not None:
        state, lower = own
        return Decision(inputs=(FIRST, state, state), outputs=(FIRST,), lower=lower)
    table, positions, updates = map(shape_of, node.inputs)
    depth = integer(positions[-1] if positions else None)
    moved = len(positions) - 1 - depth
    targets = [states[0]]
    if isinstance(states[2], Sharded):
        targets.append(states[2].at(states[2].axis - moved))
    for target in targets:
        if not isinstance(target, Sharded) or not depth <= target.axis < len(table):
            continue
        source = target.at(target.axis + moved)
        if is_shardable(updates, source) and updates[source.axis] == table[target.axis]:
            wanted = (target, REPLICATED, source)
            return Decision(inputs=wanted, outputs=(target,), needs_samples=True)
    return None


traits("GatherV2 ResourceGather", Trait.FREE)


COMBINE = {
    "UnsortedSegmentSum": "sum",
    "UnsortedSegmentMax": "max",
    "UnsortedSegmentMin": "min",
    "UnsortedSegmentProd": "prod",
}


@shape_rule(*COMBINE)
def _segments_shape(table: SymbolTable, node: Node) -> Shapes:
    data, ids = map(shape_of, node.inputs[:2])
    return [(*numbers_of(node.inputs[2]), *data[len(ids) :])]


@rule(*COMBINE, inputs=(ROWS, ROWS, WHOLE))
def _segments(node: Node, states: Sequence[State]) -> Decision | None:
    """Every part fills all segments with its rows."""
    data, ids = node.inputs[0], node.inputs[1]
    own, result = own_rows(ids), node.outputs[0]
    if own is not None and _has_batch(states) and _has_rows(result, own):
        state = Sharded(own.axis)
        if is_shardable(ids.shape, state) and is_shardable(data.shape, state):
            count = Numbers(part_sizes(shape_of(result), FIRST)[:1])
            lower = from_own_rows(1, step=own.step)
            return Decision(inputs=(state, state, count), outputs=(FIRST,), lower=lower)
    state, rank = first_sharded(states[:2]), rank_of(ids)
    if state.axis < rank:
        require(is_shardable(data.shape, state) and is_shardable(ids.shape, state))
        return Decision(inputs=(state, state, REPLICATED), outputs=(Partial(COMBINE[node.op]),))
    # An axis of the data behind those of the labels goes through.
    target = state.at(state.axis - rank + 1)
    return Decision(inputs=(state, REPLICATED, REPLICATED), outputs=(target,))


@rule("DenseBincount", inputs=(ROWS, WHOLE, ROWS))
def _counts(node: Node, states: Sequence[State]) -> Decision | None:
    """Counts of every row of a matrix; of a vector, terms of the counts of all samples."""
    values, weights = node.inputs[0], node.inputs[2]
    require(FIRST in (states[0], states[2]) and is_shardable(values.shape, FIRST))
    is_unweighted = weights.shape is not None and 0 in weights.shape
    require(is_unweighted or weights.shape == values.shape)
    if values.rank == 2:
        state: State = FIRST
    else:
        state = Partial("max") if node.bool_attr("binary_output") else SUM
    weighted = REPLICATED if is_unweighted else FIRST
    return Decision(inputs=(FIRST, REPLICATED, weighted), outputs=(state,))


rule("HistogramFixedWidth", inputs=(ROWS, WHOLE, WHOLE))(
    lambda node, states: by_rows(node, sharded(states[0]), SUM)
)
shape_rule.table(
    {
        "Gather": lambda table, node: [(*shape_of(node.inputs[1]), *shape_of(node.inputs[0])[1:])],
        "ResourceGather": lambda table, node: [
            (
                *shape_of(node.inputs[1]),
                *map(integer, known(node.static_shapes[0])[rank_of(node.inputs[1]) :]),
            )
        ],
        "ScatterNd": given_by_input(2),
        " ".join(SCATTERS): like_input(0),
        "DenseBincount": lambda table, node: [
            (*shape_of(node.inputs[0])[:-1], *numbers_of(node.inputs[1]))
        ],
    }
)
equal_sizes_rule(*COMBINE)(leading)
traits(" ".join(COMBINE), Trait.OTHER_ROWS)
