"""Sums by labels, and rows that are added to places of a table."""

from __future__ import annotations

from collections.abc import Sequence

from evener.engine.sharding.rules.own_rows import is_of_batch, scatter_to_own, segments_of_own
from evener.graph.nodes import Node
from evener.ops.decision import ROWS, WHOLE, Decision, rule
from evener.ops.states import REPLICATED, Partial, Sharded, State, is_shardable

COMBINE = {
    "UnsortedSegmentSum": "sum",
    "UnsortedSegmentMax": "max",
    "UnsortedSegmentMin": "min",
    "UnsortedSegmentProd": "prod",
}


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


@rule("ScatterNd", inputs=(ROWS, ROWS, WHOLE))
def _scatter_nd(node: Node, states: Sequence[State]) -> Decision | None:
    """Rows are added to zeros, so every part adds its own."""
    own = scatter_to_own(node)
    if own is not None and any(is_of_batch(state) for state in states):
        return own
    places = node.inputs[0].rank
    for state in states[:2]:
        if isinstance(state, Sharded) and places is not None and state.axis < places - 1:
            if all(is_shardable(t.shape, state) for t in node.inputs[:2]):
                return Decision(inputs=(state, state, REPLICATED), outputs=(Partial("sum"),))
    return None
