"""Sums, means and extremes over axes."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from evener.graph.dims import Size, product
from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import reduced_axes, scalar
from evener.ops.builder import Builder
from evener.ops.decision import EXTREMES, ROWS, SUMS, WHOLE, Decision
from evener.ops.known import numbers_of, shape_of, sharded
from evener.ops.registry import TOTAL, Shapes, partial_rule, rule, shape_rule, traits, value_rule
from evener.ops.states import REPLICATED, SUM, Partial, Sharded, State

COMBINE = {"Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod", "All": "all", "Any": "any"}


@shape_rule(*COMBINE, "Mean", "EuclideanNorm", "ArgMax", "ArgMin")
def _reduction_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, axes = shape_of(node.inputs[0]), numbers_of(node.inputs[1])
    gone = reduced_axes(shape, axes)
    if gone is None:
        return None
    if node.bool_attr("keep_dims"):
        return [tuple(1 if k in gone else size for k, size in enumerate(shape))]
    return [tuple(size for k, size in enumerate(shape) if k not in gone)]


@value_rule("Prod", "Sum", "Max", "Min")
def _reduce(table: SymbolTable, node: Node) -> Shapes:
    value, shape = numbers_of(node.inputs[0]), shape_of(node.inputs[0])
    axes = reduced_axes(shape, node.inputs[1].value)
    if axes is None:
        return None
    if shape and not axes:
        return [value]
    if node.op == "Prod":
        return [(product(value),)]
    if node.op == "Sum":
        total: Size = 0
        for number in value:
            total = number + total
        return [(total,)]
    if len(set(value)) == 1:
        return [value[:1]]
    numbers = [number for number in value if isinstance(number, int)]
    if len(numbers) < len(value) or not numbers:
        return None
    return [(max(numbers) if node.op == "Max" else min(numbers),)]


@rule(*COMBINE, "Mean", "EuclideanNorm", "ArgMax", "ArgMin", inputs=(ROWS, WHOLE))
def _reduction(node: Node, states: Sequence[State]) -> Decision | None:
    """Over other axes every part by itself; over the batch a partial result."""
    shape, state = shape_of(node.inputs[0]), sharded(states[0])
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
            dtype = node.outputs[0].dtype
            # Kernels of means add in float32, but for the one of float16 on a CPU.
            is_wide = node.xla or not builder.may_be_on_cpu
            if dtype == tf.bfloat16 or (dtype == tf.float16 and is_wide):
                dtype = tf.float32
            terms = builder.cast(inputs[0], node.outputs[0].dtype, dtype)
            total = builder.op("Sum", [terms, inputs[1]], {**node.attrs, "T": dtype})
            number = builder.number(count, dtype)
            mean = builder.op("RealDiv", [total[0], number], {"T": dtype})[0]
            return [builder.cast(mean, dtype, node.outputs[0].dtype)]

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


shape_rule("L2Loss")(scalar)
traits("All Any L2Loss Max Mean Min Prod Sum", TOTAL)
