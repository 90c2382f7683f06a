"""Rows of one size never meet rows of another.

A rule says what it is given: that the parts compute an operation of their rows. Here it is held to
it, so that a rule that knows of no other rows than the samples of the batch is not used for them.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from evener.graph.dims import BATCH, PartSymbol, Size, has_batch, symbols_of
from evener.graph.nodes import Node
from evener.ops.decision import Decision
from evener.ops.states import Numbers, Sharded


def is_of_rows(node: Node, decision: Decision, rows: Size) -> bool:
    """Return whether an operation is computed of certain rows alone.

    Args:
        node: The operation.
        decision: Decision of a rule.
        rows: The size that is split.
    """
    states = [*decision.inputs, *decision.outputs]
    if any(isinstance(state, Sharded) and state.rows != rows for state in states):
        return False
    numbers = [size for given in states if isinstance(given, Numbers) for size in given.sizes]
    if not _are_of(rows, (name for size in numbers for name in symbols_of(size))):
        return False
    if rows == BATCH:
        return True
    # A list that is made for rows of samples says so by sizes with the batch in them.
    tensors = (*node.inputs, *node.outputs)
    if not has_batch(rows) and any(tensor.dtype == tf.variant for tensor in tensors):
        return False
    return decision.lower is None or decision.lower_rows == rows


def _are_of(rows: Size, names: Iterable[str]) -> bool:
    return all(not isinstance(name, PartSymbol) or name.rows == rows for name in names)
