"""Functions of a batch that compute each row from that row alone.

Such a function gives the same rows whichever others it is given. What is known of the states of
tensors proves it: nothing is joined, no number of the batch is read, and no operation is replaced
by one that knows where its rows are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.sharding.sharded_step import ShardedStep, shard_step
from evener.engine.trace.functional import CONDITIONS, LOOPS
from evener.engine.trace.step import trace_step
from evener.graph.dims import BATCH, Size, symbols_of
from evener.graph.nodes import Node, Tensor
from evener.ops.states import FIRST, REPLICATED, Numbers, Sharded, State

_LOG = logging.getLogger("evener")
_SAME_FOR_ROWS = frozenset({"StridedSlice"})
"""Operations whose replacement is the same operation, with the numbers of rows of a part."""


def is_row_wise(function: Callable[..., Sequence[Any]], specs: Sequence[tf.TensorSpec]) -> bool:
    """Return whether a function computes each row of its results from that row alone.

    Args:
        function: Function of flat tensors that returns flat tensors.
        specs: Specs of its arguments, whose first sizes are not known.
    """
    try:
        traced = trace_step(function, specs, [0] * len(specs), autograph=False)
        step = shard_step(traced)
    # Then it stays as it is: whoever asks can do without an answer, and not without the function.
    except Exception as error:
        _LOG.debug("a function of a batch is not partitioned: %s", error)
        return False
    if not all(_is_of_rows(step, node) for node in step.nodes):
        return False
    states = step.sharding.states
    return all(
        states.get(tensor) == FIRST and tensor.shape and tensor.shape[0] == BATCH
        for tensor in step.graph.outputs
    )


def _is_of_rows(step: ShardedStep, node: Node) -> bool:
    """Return whether a node computes rows from the same rows, or is the same for all batches."""
    decision = step.sharding.decisions.get(node)
    if node.has_side_effect or node.bodies or node.op in LOOPS | CONDITIONS:
        return False
    if decision is not None and decision.lower is not None and node.op not in _SAME_FOR_ROWS:
        return False
    if any(True for _ in step.symbol_sources(node)):
        return False
    return all(_reads_rows(step, *request) for request in step.requests(node))


def _reads_rows(step: ShardedStep, tensor: Tensor, request: State | Numbers) -> bool:
    if isinstance(request, Numbers):
        return _names(request.sizes) <= symbols_of(FIRST.in_part)
    if tensor.is_sizes:
        return not _names(tensor.value or ())
    state = step.sharding.states.get(tensor, REPLICATED)
    if isinstance(state, Sharded):
        return state == request and state.rows == BATCH
    return state == REPLICATED


def _names(sizes: Sequence[Size]) -> set[str]:
    return {name for size in sizes for name in symbols_of(size)}
