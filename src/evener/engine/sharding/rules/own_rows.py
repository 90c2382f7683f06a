"""Rows that every sample takes from, or adds to, its own: no part needs those of another."""

from __future__ import annotations

from collections.abc import Sequence

from evener.engine.trace.own_rows import OwnRows, first_of_positions, in_own_rows, own_rows
from evener.graph.dims import BATCH
from evener.graph.nodes import Node, Tensor
from evener.ops.builder import Builder
from evener.ops.decision import Decision, Lower
from evener.ops.states import (
    FIRST,
    PART_OFFSET,
    REPLICATED,
    Numbers,
    Sharded,
    State,
    is_shardable,
    part_sizes,
)


def with_own_rows(index: int, *, step: int = 1, depth: int = 0) -> Lower:
    """Return the operation with positions that count from the part's first row.

    Args:
        index: Which input holds the positions.
        step: The rows of a sample.
        depth: How many numbers a position has, along the last axis; 0 if it is a number itself.
    """

    def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        dtype = node.inputs[index].dtype
        before = PART_OFFSET * step
        if depth > 1:
            first = builder.vector([before, *[0] * (depth - 1)], dtype)
        else:
            first = builder.number(before, dtype)
        local = builder.op("Sub", [inputs[index], first], {"T": dtype})[0]
        given = [local if k == index else one for k, one in enumerate(inputs)]
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
    data, positions = node.inputs
    own, depth = _own(positions), _depth(positions)
    if own is None or depth is None or not _has_rows(data, own):
        return None
    state = Sharded(own.axis)
    if not is_shardable(positions.shape, state):
        return None
    lower = with_own_rows(1, step=own.step, depth=depth)
    return Decision(inputs=(FIRST, state), outputs=(state,), lower=lower)


def scatter_to_own(node: Node) -> Decision | None:
    """Return what the parts compute of a ScatterNd to rows of the samples, or None."""
    positions, updates = node.inputs[:2]
    own, depth, result = _own(positions), _depth(positions), node.outputs[0]
    if own is None or depth is None or result.shape is None or not _has_rows(result, own):
        return None
    state = Sharded(own.axis)
    if not is_shardable(positions.shape, state) or not is_shardable(updates.shape, state):
        return None
    return Decision(
        inputs=(state, state, Numbers(part_sizes(result.shape, FIRST))),
        outputs=(FIRST,),
        lower=with_own_rows(0, step=own.step, depth=depth),
    )


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


def _own(positions: Tensor) -> OwnRows | None:
    own = first_of_positions(positions)
    return own if own is not None and own.is_within else None


def _depth(positions: Tensor) -> int | None:
    size = positions.shape[-1] if positions.shape else None
    return size if isinstance(size, int) else None


def _has_rows(table: Tensor, own: OwnRows) -> bool:
    """Return whether a table has as many rows for every sample as the positions say."""
    return table.shape is not None and bool(table.shape) and table.shape[0] == BATCH * own.step
