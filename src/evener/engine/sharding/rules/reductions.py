"""Sums, means and extremes over axes."""

from __future__ import annotations

from collections.abc import Sequence

from evener.engine.trace.shape_rules import reduced_axes
from evener.graph.dims import product
from evener.graph.nodes import Node
from evener.ops.builder import Builder
from evener.ops.decision import (
    EXTREMES,
    ROWS,
    SUMS,
    WHOLE,
    Decision,
    partial_rule,
    rule,
)
from evener.ops.states import REPLICATED, SUM, Partial, Sharded, State

COMBINE = {"Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod", "All": "all", "Any": "any"}


@rule(*COMBINE, "Mean", "EuclideanNorm", "ArgMax", "ArgMin", inputs=(ROWS, WHOLE))
def reduction(node: Node, states: Sequence[State]) -> Decision | None:
    """Over other axes every part by itself; over the batch a partial result."""
    shape, state = node.inputs[0].shape, states[0]
    if shape is None or not isinstance(state, Sharded):
        return None
    gone = reduced_axes(shape, node.inputs[1].value)
    if gone is None:
        return None
    if state.axis not in gone:
        keeps = node.bool_attr("keep_dims")
        axis = state.axis if keeps else state.axis - sum(k < state.axis for k in gone)
        return Decision(inputs=(state, REPLICATED), outputs=(state.at(axis),))
    if node.op in COMBINE:
        # TensorFlow rewrites max(log(x)) to log(max(x)), which of no samples is log(-inf).
        is_rewritten = node.op in ("Max", "Min") and node.outputs[0].dtype.is_floating
        return Decision(
            inputs=(state, REPLICATED),
            outputs=(Partial(COMBINE[node.op]),),
            needs_samples=is_rewritten,
        )
    if node.op == "Mean" and (
        node.outputs[0].dtype.is_floating or node.outputs[0].dtype.is_complex
    ):
        count = product(shape[k] for k in sorted(gone))

        def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
            total = builder.op("Sum", inputs, node.attrs)
            number = builder.number(count, node.outputs[0].dtype)
            return builder.op("RealDiv", [total[0], number], {"T": node.outputs[0].dtype})

        return Decision(
            inputs=(state, REPLICATED), outputs=(SUM,), lower=lower, lower_rows=state.rows
        )
    return None


@rule("L2Loss", inputs=ROWS)
def _l2_loss(node: Node, states: Sequence[State]) -> Decision | None:
    if isinstance(states[0], Sharded):
        return Decision(inputs=(states[0],), outputs=(Partial("sum"),))
    return None


@partial_rule("Sum", inputs=(SUMS, WHOLE))
@partial_rule("Mean", inputs=(SUMS, WHOLE), inexact=True)
@partial_rule("Max", "Min", "All", "Any", inputs=(EXTREMES, WHOLE))
def _of_partial(node: Node, states: Sequence[State]) -> Decision | None:
    """The sum of partial sums over another axis is a partial sum; so with extremes."""
    combine = COMBINE.get(node.op, "sum")
    if states[0] == Partial(combine):
        return Decision(inputs=tuple(states), outputs=(states[0],))
    return None
