"""Sums by labels, and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evener.graph.nodes import Node, Tensor
from evener.graph.symbols import SymbolTable
from evener.ops.axes import leading
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.known import numbers_of, shape_of
from evener.ops.own_rows import is_of_batch, segments_of_own
from evener.ops.registry import (
    IndexLimit,
    Shapes,
    Trait,
    equal_sizes_rule,
    gathered,
    index_limit_rule,
    rule,
    shape_rule,
    traits,
)
from evener.ops.states import FIRST, REPLICATED, SUM, Partial, Sharded, State, is_shardable

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
gathered(
    "SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum",
    "The number of rows of its result is in the data.",
)
