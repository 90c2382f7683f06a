"""Comparisons, logic, and what is chosen by them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import alike
from evener.ops.decision import ROWS, Decision
from evener.ops.elementwise import as_they_are, broadcasting, unary
from evener.ops.equal_rows import has_equal_rows
from evener.ops.known import integers_of, shape_of
from evener.ops.registry import (
    EVERY_ELEMENT,
    TOTAL,
    Shapes,
    equal_sizes_rule,
    index_inputs,
    rule,
    shape_rule,
    traits,
    truth_rule,
    value_rule,
)
from evener.ops.states import REPLICATED, Sharded, State, is_shardable
from evener.ops.values import truth_of, truths_of

broadcasting("""
ApproximateEqual Equal Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr NotEqual SelectV2
""")
unary("LogicalNot")
equal_sizes_rule("Select")(alike)
traits(
    """
    Equal Greater GreaterEqual Less LessEqual LogicalAnd LogicalNot LogicalOr NotEqual Select
    SelectV2
    """,
    TOTAL,
)
traits("LogicalNot Select", EVERY_ELEMENT)
index_inputs("Select SelectV2", slice(1, 3))


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Less": operator.lt,
    "LessEqual": operator.le,
}


@truth_rule(*_COMPARED)
def _compared_truth(node: Node) -> tuple[bool, ...] | None:
    values = [integers_of(tensor) for tensor in node.inputs]
    count = max(map(len, values))
    a, b = (numbers * count if len(numbers) == 1 else numbers for numbers in values)
    return tuple(map(_COMPARED[node.op], a, b))


@truth_rule("LogicalAnd", "LogicalOr", "LogicalNot")
def _combined_truth(node: Node) -> tuple[bool, ...] | None:
    op, parts = node.op, [truth_of(tensor) for tensor in node.inputs]
    if op == "LogicalNot":
        return None if parts[0] is None else (not parts[0],)
    # One answer decides, whatever the other is.
    decides = op == "LogicalOr"
    if decides in parts:
        return (decides,)
    return None if None in parts else (not decides,)


@shape_rule("Select")
def _select_shape(table: SymbolTable, node: Node) -> Shapes:
    return [node.inputs[1].shape or node.inputs[2].shape]


@value_rule("SelectV2")
def _select_value(table: SymbolTable, node: Node) -> Shapes:
    condition, (a, b) = node.inputs[0], (t.value for t in node.inputs[1:])
    if condition.rank == 1:
        truths = truths_of(condition)
        if truths is None or a is None or b is None or not len(a) == len(b) == len(truths):
            return None
        return [tuple(x if holds else y for x, y, holds in zip(a, b, truths, strict=True))]
    if condition.rank != 0:
        return None
    chosen = truth_of(condition)
    if chosen is not None:
        return [a if chosen else b] if node.inputs[1].rank == node.inputs[2].rank else None
    return [a] if a is not None and a == b else None


@rule("Select", inputs=ROWS)
def _select(node: Node, states: Sequence[State]) -> Decision | None:
    """The old select: a condition of rank 1 chooses whole rows."""
    condition, shape = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    sharded = next(
        (
            state
            for tensor, state in zip(node.inputs, states, strict=True)
            if isinstance(state, Sharded) and not has_equal_rows(tensor, state.axis)
        ),
        next((s for s in states[1:] if isinstance(s, Sharded)), states[0]),
    )
    if not isinstance(sharded, Sharded):
        return None
    if not is_shardable(shape, sharded):
        return None
    if len(condition) == len(shape):
        inputs = as_they_are(node, states, (sharded,) * 3)
        return Decision(inputs=inputs, outputs=(sharded,))
    if len(condition) == 0:
        return Decision(inputs=(REPLICATED, sharded, sharded), outputs=(sharded,))
    if len(condition) == 1 and sharded.axis == 0:
        inputs = as_they_are(node, states, (sharded,) * 3)
        return Decision(inputs=inputs, outputs=(sharded,))
    return None
