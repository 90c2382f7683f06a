"""Rows that are taken from a table, or written to one; sums by labels, and counts.

A program often counts the samples to say which row it means::

    tf.gather_nd(x, tf.stack([tf.range(batch), label], 1))      row k of x for sample k
    flat index = k * width + position, position < width         the gradient of top_k

Such positions need no rows of other samples. What comes from the data is not certain to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evener.graph.dims import BATCH, Size, divide, product
from evener.graph.nodes import Node, SymbolTable, Tensor
from evener.graph.ops.registry import (
    COPY,
    FREE,
    IndexLimit,
    Shapes,
    Trait,
    equal_sizes_rule,
    given_by_input,
    has_trait,
    index_limit_rule,
    leading,
    like_input,
    replicated,
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
    Builder,
    Decision,
    Lower,
    Numbers,
    Partial,
    Sharded,
    State,
    axis_of,
    is_shardable,
    numbers_of,
    part_sizes,
    rank_of,
    shape_of,
    sharded,
)

# Positions that are certain to be within the rows of their own sample.
#
# A program often counts the samples to say which row it means::
#
#     tf.gather_nd(x, tf.stack([tf.range(batch), label], 1))      row k of x for sample k
#     flat index = k * width + position, position < width         the gradient of top_k
#
# Such positions need no rows of other samples. What comes from the data is not certain to.


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """Integers between ``k * step`` and ``k * step + slack`` for sample k."""

    axis: int  # The axis of the tensor that counts samples, with all rows of a sample together
    step: int  # The distance from sample to sample
    slack: int  # The largest distance from the first position of the sample

    @property
    def is_within(self) -> bool:
        """Whether no position reaches into the rows of the next sample."""
        return self.slack < self.step


def in_own_rows(tensor: Tensor) -> bool:
    """Return whether the numbers along the first axis are those of the samples."""
    own = own_rows(tensor)
    return own is not None and own.axis == 0 and own.step == 1 and own.slack == 0


def own_rows(tensor: Tensor) -> OwnRows | None:
    """Return within which rows of their samples the numbers of a tensor are, if it is certain."""
    node = tensor.node
    if node.op == "Range":
        return _of_range(node)
    if has_trait(node, COPY):
        return own_rows(node.inputs[0])
    if node.op == "Cast":
        return own_rows(node.inputs[0]) if tensor.dtype.size >= 4 else None
    if has_trait(node, Trait.RESHAPES) or node.op in ("Tile", "BroadcastTo"):
        return _moved(node)
    if (node.op == "StridedSlice" and _takes_all(node)) or _packs_one(node):
        return _moved(node)
    if node.op == "Transpose":
        return _transposed(node)
    if node.op in ("Add", "AddV2"):
        return _sum(node, *node.inputs) or _sum(node, *reversed(node.inputs))
    if node.op == "Mul":
        return _product(node, *node.inputs) or _product(node, *reversed(node.inputs))
    if node.op == "SelectV2" and _has_samples_beside(node.inputs[0]):
        # As `tf.vectorized_map` makes them: the first row where it is the only one.
        return _moved(node, node.inputs[1]) if node.inputs[2].value == (0,) else None
    return None


def _has_samples_beside(condition: Tensor) -> bool:
    """Return whether a condition is that there is more than one sample."""
    node = condition.node
    return node.op == "Greater" and [t.value for t in node.inputs] == [(BATCH,), (1,)]


def first_of_positions(positions: Tensor) -> OwnRows | None:
    """Return the rows of the first number of every position, along the last axis."""
    node, rank = positions.node, positions.rank
    if rank is None or positions.shape is None:
        return None
    while has_trait(node, COPY) or (node.op == "Cast" and positions.dtype.size >= 4):
        positions = node.inputs[0]
        node = positions.node
    if node.op == "Pack" and node.int_attr("axis") in (-1, rank - 1):
        found = own_rows(node.inputs[0])
    elif node.op == "ConcatV2" and node.inputs[-1].value in ((-1,), (rank - 1,)):
        first = node.inputs[0].shape
        found = own_rows(node.inputs[0]) if first is not None and first[-1] == 1 else None
    else:
        found = own_rows(positions) if (positions.shape or ())[-1:] == (1,) else None
    return found if found is not None and found.axis < rank - 1 else None


def _of_range(node: Node) -> OwnRows | None:
    start, limit, step = (t.value for t in node.inputs)
    if start != (0,) or limit is None or step is None or not isinstance(step[0], int):
        return None
    if step[0] < 1 or limit[0] != BATCH * step[0]:
        return None
    return OwnRows(axis=0, step=step[0], slack=0)


def _moved(node: Node, source: Tensor | None = None) -> OwnRows | None:
    """Copies of the same numbers, with the rows of every sample still together."""
    source = node.inputs[0] if source is None else source
    before, after, own = source.shape, node.outputs[0].shape, own_rows(source)
    if own is None or before is None or after is None:
        return None
    if has_trait(node, Trait.RESHAPES) or node.op in ("StridedSlice", "Pack"):
        axis = _axis_after(before, after, own.axis)
        return None if axis is None else replace(own, axis=axis)
    axis = own.axis + len(after) - len(before)
    return replace(own, axis=axis) if after[axis] == before[own.axis] else None


def _packs_one(node: Node) -> bool:
    """Return whether a node adds an axis of size 1 to one tensor."""
    return node.op == "Pack" and len(node.inputs) == 1


def _transposed(node: Node) -> OwnRows | None:
    own, axes = own_rows(node.inputs[0]), node.inputs[1].value
    if own is None or axes is None or own.axis not in axes:
        return None
    return replace(own, axis=axes.index(own.axis))


def _takes_all(node: Node) -> bool:
    """Return whether a slice takes all rows of all axes, and adds axes of size 1 at most."""
    shape = node.inputs[0].shape
    taken = None if shape is None else slices(node, shape)
    return taken is not None and all(rows is None or rows.is_whole for rows in taken)


def _axis_after(before: tuple[Size, ...], after: tuple[Size, ...], axis: int) -> int | None:
    """Return which axis counts samples after a reshape that leaves as many in front of it."""
    front, total = product(before[:axis]), divide(product(before), BATCH)
    for found, size in enumerate(after):
        if divide(size, BATCH) is None or product(after[:found]) != front:
            continue
        behind = divide(product(after), BATCH)
        return found if behind == total else None
    return None


def _sum(node: Node, own: Tensor, other: Tensor) -> OwnRows | None:
    rows, bound = _broadcast(node, own), largest(other)
    if rows is None or bound is None:
        return None
    return replace(rows, slack=rows.slack + bound)


def _product(node: Node, own: Tensor, factor: Tensor) -> OwnRows | None:
    rows, times = _broadcast(node, own), _everywhere(factor)
    if rows is None or not isinstance(times, int) or times < 1:
        return None
    return replace(rows, step=rows.step * times, slack=rows.slack * times)


def _broadcast(node: Node, own: Tensor) -> OwnRows | None:
    """Return the rows of an input along the axes of the result, if it is not repeated there."""
    rows, result = own_rows(own), node.outputs[0].shape
    if rows is None or result is None or own.shape is None:
        return None
    axis = rows.axis + len(result) - len(own.shape)
    return replace(rows, axis=axis) if result[axis] == own.shape[rows.axis] else None


_LIKE = {"OnesLike": 1, "ZerosLike": 0}


def _everywhere(tensor: Tensor) -> Size | None:
    """Return the number that all elements of a tensor are, if it is certain."""
    if tensor.node.op in _LIKE:
        return _LIKE[tensor.node.op]
    if tensor.node.op == "Fill":
        return _everywhere(tensor.node.inputs[1])
    numbers = set(tensor.value or ())
    return numbers.pop() if len(numbers) == 1 else None


_OF_THE_SAME_NUMBERS = frozenset({"BroadcastTo", "Slice", "StridedSlice", "Tile", "Transpose"})
"""Operations that repeat, move and leave out numbers of their first input."""


def largest(tensor: Tensor) -> int | None:
    """Return the largest number that may be in a tensor without negative ones, if it is certain."""
    node = tensor.node
    if tensor.value:
        numbers = [number for number in tensor.value if isinstance(number, int) and number >= 0]
        return max(numbers) if len(numbers) == len(tensor.value) else None
    if node.op in _LIKE:
        return _LIKE[node.op]
    if node.op == "Fill":
        return largest(node.inputs[1])
    if has_trait(node, COPY | Trait.RESHAPES) or node.op in _OF_THE_SAME_NUMBERS:
        return largest(node.inputs[0])
    if node.op == "Cast":
        is_integer = node.inputs[0].dtype.is_integer and tensor.dtype.size >= 4
        return largest(node.inputs[0]) if is_integer else None
    shape = node.inputs[0].shape if node.inputs else None
    if node.op in ("TopKV2", "TopK") and tensor.index == 1 and shape:
        return shape[-1] - 1 if isinstance(shape[-1], int) else None
    if node.op in ("ArgMax", "ArgMin") and shape and node.inputs[1].value is not None:
        axis = node.inputs[1].value[0]
        size = shape[axis] if isinstance(axis, int) else None
        return size - 1 if isinstance(size, int) else None
    return None


def with_own_rows(index: int, *, step: int = 1, depth: int = 0) -> Lower:
    """Return the operation with positions that count from the part's first row."""

    def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        dtype = node.inputs[index].dtype
        before = PART_OFFSET * step
        if depth > 1:
            first = builder.vector([before, *[0] * (depth - 1)], dtype)
        else:
            first = builder.number(before, dtype)
        local = builder.op("Sub", [inputs[index], first], {"T": dtype})[0]
        given = [local if k == index else given for k, given in enumerate(inputs)]
        return builder.copy(node.op, node.name, given, node.attrs)

    return lower


def is_of_batch(state: State) -> bool:
    """Return whether a state has rows of the samples of the batch."""
    return isinstance(state, Sharded) and state.rows == BATCH


def gather_from_own(node: Node) -> Decision | None:
    """Return what the parts compute of a GatherV2 of rows along the first axis, or None."""
    data, indices = node.inputs[:2]
    if not in_own_rows(indices) or not is_shardable(data.shape, FIRST) or data.shape is None:
        return None
    if data.shape[0] != BATCH or not is_shardable(indices.shape, FIRST):
        return None
    return Decision(inputs=(FIRST, FIRST, REPLICATED), outputs=(FIRST,), lower=with_own_rows(1))


def gather_nd_from_own(node: Node) -> Decision | None:
    """Return what the parts compute of a GatherNd whose first numbers are rows of the sample."""
    found = _at_own(node, 1, table=node.inputs[0])
    if found is None:
        return None
    state, lower = found
    return Decision(inputs=(FIRST, state), outputs=(state,), lower=lower)


def scatter_to_own(node: Node) -> Decision | None:
    """Return what the parts compute of a ScatterNd to rows of the samples, or None."""
    result = node.outputs[0]
    found = _at_own(node, 0, node.inputs[1], table=result)
    if found is None or result.shape is None:
        return None
    state, lower = found
    sizes = Numbers(part_sizes(result.shape, FIRST))
    return Decision(inputs=(state, state, sizes), outputs=(FIRST,), lower=lower)


def scatter_in_own(node: Node) -> Decision | None:
    """Return what the parts compute of a tensor changed in rows of the samples, or None."""
    found = _at_own(node, 1, node.inputs[2], table=node.inputs[0])
    if found is None:
        return None
    state, lower = found
    return Decision(inputs=(FIRST, state, state), outputs=(FIRST,), lower=lower)


def segments_of_own(node: Node) -> Decision | None:
    """Return what the parts compute of sums by labels that are rows of the samples, or None."""
    data, ids = node.inputs[:2]
    own, result = own_rows(ids), node.outputs[0]
    if own is None or not own.is_within or result.shape is None or not _has_rows(result, own):
        return None
    state = Sharded(own.axis)
    if not is_shardable(ids.shape, state) or not is_shardable(data.shape, state):
        return None
    count = part_sizes(result.shape, FIRST)[:1]
    return Decision(
        inputs=(state, state, Numbers(count)),
        outputs=(FIRST,),
        lower=with_own_rows(1, step=own.step),
    )


def _at_own(
    node: Node, index: int, *updates: Tensor, table: Tensor
) -> tuple[Sharded, Lower] | None:
    """Return the state of positions in rows of the samples, and how the parts compute the node."""
    positions = node.inputs[index]
    own, depth = first_of_positions(positions), (positions.shape or (None,))[-1]
    if own is None or not own.is_within or not isinstance(depth, int) or not _has_rows(table, own):
        return None
    state = Sharded(own.axis)
    if not all(is_shardable(tensor.shape, state) for tensor in (positions, *updates)):
        return None
    return state, with_own_rows(index, step=own.step, depth=depth)


def _has_rows(table: Tensor, own: OwnRows) -> bool:
    """Return whether a table has as many rows for every sample as the positions say."""
    return table.shape is not None and bool(table.shape) and table.shape[0] == BATCH * own.step


# Rows that are taken from a table, or written to one; sums by labels, and counts.


@shape_rule("GatherV2")
def _gather_shape(table: SymbolTable, node: Node) -> Shapes:
    data, indices = (shape_of(t) for t in node.inputs[:2])
    axis = numbers_of(node.inputs[2])
    if not isinstance(axis[0], int):
        return None
    at, shared = axis[0] % len(data), node.int_attr("batch_dims")
    return [(*data[:at], *indices[shared:], *data[at + 1 :])]


@value_rule("GatherV2")
def _gather_value(table: SymbolTable, node: Node) -> Shapes:
    value, positions = numbers_of(node.inputs[0]), numbers_of(node.inputs[1])
    if node.inputs[0].rank != 1:
        return None
    if not all(isinstance(k, int) and 0 <= k < len(value) for k in positions):
        return None
    return [tuple(value[k] for k in positions if isinstance(k, int))]


@rule("GatherV2", inputs=(ROWS, ROWS, WHOLE))
@rule("Gather", inputs=ROWS)
def _gather(node: Node, states: Sequence[State]) -> Decision | None:
    """Rows of a table that all parts have, or of every sample's own table."""
    data, indices = states[0], states[1]
    shape, positions = shape_of(node.inputs[0]), shape_of(node.inputs[1])
    is_new = node.op == "GatherV2"
    axis = axis_of(node.inputs[2], len(shape)) if is_new else 0
    shared = node.int_attr("batch_dims") if is_new else 0
    others = replicated(len(states) - 2)
    for state in (data, indices):
        if isinstance(state, Sharded) and state.axis < shared:
            if is_shardable(shape, state) and is_shardable(positions, state):
                return Decision(inputs=(state, state, *others), outputs=(state,))
            return None
    if isinstance(indices, Sharded):
        is_by_rows = is_new and axis == shared == 0 and indices.rows == BATCH
        own = gather_from_own(node) if is_by_rows else None
        if own is not None:
            return own
        target = indices.at(axis + indices.axis - shared)
        return Decision(inputs=(REPLICATED, indices, *others), outputs=(target,))
    if isinstance(data, Sharded) and data.axis != axis:
        moved = data.axis if data.axis < axis else data.axis + len(positions) - shared - 1
        return Decision(inputs=(data, REPLICATED, *others), outputs=(data.at(moved),))
    return None


@shape_rule("Gather")
def _old_gather_shape(table: SymbolTable, node: Node) -> Shapes:
    data, indices = (t.shape for t in node.inputs)
    return None if data is None or indices is None else [(*indices, *data[1:])]


@equal_sizes_rule("GatherV2")
def _equal_sizes(node: Node) -> Iterator[tuple[Size, Size]]:
    data, indices = (tensor.shape for tensor in node.inputs[:2])
    shared = node.int_attr("batch_dims")
    yield from zip((data or ())[:shared], (indices or ())[:shared], strict=False)


@index_limit_rule("GatherV2")
def _gather_limit(node: Node, shapes: Mapping[Tensor, tuple[int, ...]]) -> IndexLimit:
    del shapes
    shape, axes = node.inputs[0].shape, node.inputs[2].value or ()
    axis = axes[0] if axes else None
    return node.inputs[1], shape[axis] if shape and isinstance(axis, int) else None


@shape_rule("ResourceGather")
def _resource_gather_shape(table: SymbolTable, node: Node) -> Shapes:
    indices, static = shape_of(node.inputs[1]), node.static_shapes[0]
    if static is None:
        return None
    rest = static[len(indices) :]
    if any(size is None for size in rest):
        return None
    return [(*indices, *(size for size in rest if size is not None))]


@index_limit_rule("ResourceGather")
def _resource_gather_limit(node: Node, shapes: Mapping[Tensor, tuple[int, ...]]) -> IndexLimit:
    shape = shapes.get(node.inputs[0], ())
    return node.inputs[1], shape[0] if shape else None


@shape_rule("GatherNd")
def _gather_nd_shape(table: SymbolTable, node: Node) -> Shapes:
    data, indices = (t.shape for t in node.inputs)
    if data is None or not indices or not isinstance(indices[-1], int):
        return None
    return [(*indices[:-1], *data[indices[-1] :])]


@rule("GatherNd", inputs=ROWS)
def _gather_nd(node: Node, states: Sequence[State]) -> Decision | None:
    indices, rank = sharded(states[1]), rank_of(node.inputs[1])
    if indices.axis == rank - 1:
        return None
    own = gather_nd_from_own(node) if indices.rows == BATCH else None
    return own or Decision(inputs=(REPLICATED, indices), outputs=(indices,))


@rule("ScatterNd", inputs=(ROWS, ROWS, WHOLE))
def _scatter_nd(node: Node, states: Sequence[State]) -> Decision | None:
    """Rows are added to zeros, so every part adds its own."""
    own = scatter_to_own(node)
    if own is not None and any(is_of_batch(state) for state in states):
        return own
    rank = node.inputs[0].rank
    for state in states[:2]:
        if isinstance(state, Sharded) and rank is not None and state.axis < rank - 1:
            if all(is_shardable(t.shape, state) for t in node.inputs[:2]):
                return Decision(inputs=(state, state, REPLICATED), outputs=(Partial("sum"),))
    return None


@rule("TensorScatterAdd", "TensorScatterSub", inputs=ROWS)
@rule("TensorScatterUpdate", inputs=ROWS)
@rule("TensorScatterMax", "TensorScatterMin", inputs=ROWS)
def _scatter(node: Node, states: Sequence[State]) -> Decision | None:
    """Positions are in rows of their sample, or along other axes and the same for all samples."""
    own = scatter_in_own(node)
    if own is not None and any(is_of_batch(state) for state in states):
        return own
    shapes = [t.shape for t in node.inputs]
    if any(shape is None for shape in shapes):
        return None
    table, positions, updates = (shape or () for shape in shapes)
    depth = positions[-1] if positions else None
    if not isinstance(depth, int):
        return None
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


shape_rule("ScatterNd")(given_by_input(2))
shape_rule(
    "TensorScatterAdd",
    "TensorScatterMax",
    "TensorScatterMin",
    "TensorScatterSub",
    "TensorScatterUpdate",
)(like_input(0))
traits("GatherV2 ResourceGather", FREE)


COMBINE = {
    "UnsortedSegmentSum": "sum",
    "UnsortedSegmentMax": "max",
    "UnsortedSegmentMin": "min",
    "UnsortedSegmentProd": "prod",
}


@shape_rule(*COMBINE)
def _segments_shape(table: SymbolTable, node: Node) -> Shapes:
    data, ids, count = (
        shape_of(node.inputs[0]),
        shape_of(node.inputs[1]),
        numbers_of(node.inputs[2]),
    )
    return [(*count, *data[len(ids) :])]


@rule(*COMBINE, inputs=(ROWS, ROWS, WHOLE))
def _segments(node: Node, states: Sequence[State]) -> Decision | None:
    """Every part fills all segments with its rows."""
    data, ids = node.inputs[0], node.inputs[1]
    own = segments_of_own(node)
    if own is not None and any(is_of_batch(state) for state in states):
        return own
    for index, state in enumerate(states[:2]):
        if not isinstance(state, Sharded):
            continue
        rank = ids.rank
        if rank is None:
            return None
        if state.axis < rank:
            if not is_shardable(data.shape, state) or not is_shardable(ids.shape, state):
                return None
            return Decision(inputs=(state, state, REPLICATED), outputs=(Partial(COMBINE[node.op]),))
        if index == 0:
            # An axis behind those of the labels goes through.
            target = state.at(state.axis - rank + 1)
            return Decision(inputs=(state, REPLICATED, REPLICATED), outputs=(target,))
    return None


@index_limit_rule("UnsortedSegmentSum")
def _segments_limit(node: Node, shapes: Mapping[Tensor, tuple[int, ...]]) -> IndexLimit:
    del shapes
    count = node.inputs[2].value
    return node.inputs[1], count[0] if count else None


@shape_rule("DenseBincount")
def _counts_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, size = node.inputs[0].shape, node.inputs[1].value
    return None if shape is None or size is None else [(*shape[:-1], *size)]


@rule("DenseBincount", inputs=(ROWS, WHOLE, ROWS))
def _counts(node: Node, states: Sequence[State]) -> Decision | None:
    """Counts of every row of a matrix; of a vector, terms of the counts of all samples."""
    values, weights = node.inputs[0], node.inputs[2]
    if values.rank is None or not (states[0] == FIRST or states[2] == FIRST):
        return None
    if not is_shardable(values.shape, FIRST):
        return None
    weighted: State = FIRST
    if weights.shape is not None and 0 in weights.shape:
        weighted = REPLICATED
    elif weights.shape != values.shape:
        return None
    if values.rank == 2:
        return Decision(inputs=(FIRST, REPLICATED, weighted), outputs=(FIRST,))
    state = Partial("max") if node.bool_attr("binary_output") else SUM
    return Decision(inputs=(FIRST, REPLICATED, weighted), outputs=(state,))


@rule("HistogramFixedWidth", inputs=(ROWS, WHOLE, WHOLE))
def _histogram(node: Node, states: Sequence[State]) -> Decision | None:
    if not isinstance(states[0], Sharded):
        return None
    return Decision(inputs=(states[0], REPLICATED, REPLICATED), outputs=(SUM,))


equal_sizes_rule(*COMBINE)(leading)
traits(" ".join(COMBINE), Trait.OTHER_ROWS)
