"""Rows that are taken from a table, or written to one; sums by labels, and counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evener.graph.dims import BATCH, Size
from evener.graph.nodes import Node, Tensor
from evener.graph.symbols import SymbolTable
from evener.ops.axes import given_by_input, leading, like_input, replicated
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.known import axis_of, numbers_of, rank_of, shape_of, sharded
from evener.ops.own_rows import (
    gather_from_own,
    gather_nd_from_own,
    is_of_batch,
    scatter_in_own,
    scatter_to_own,
    segments_of_own,
)
from evener.ops.registry import (
    FREE,
    IndexLimit,
    Shapes,
    Trait,
    equal_sizes_rule,
    index_limit_rule,
    rule,
    shape_rule,
    traits,
    value_rule,
)
from evener.ops.states import FIRST, REPLICATED, SUM, Partial, Sharded, State, is_shardable


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
