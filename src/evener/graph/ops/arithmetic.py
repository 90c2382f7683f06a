"""Sums, products and quotients: of tensors, of sizes, of partial sums; reductions over axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from evener.graph.dims import Size, divide, is_at_least, product
from evener.graph.functions import FunctionBuilder
from evener.graph.nodes import Node, SymbolTable, Tensor, constant_array
from evener.graph.ops.elementwise import broadcasting, elementwise
from evener.graph.ops.registry import (
    EVERY_ELEMENT,
    IN_PLACE,
    TOTAL,
    Shapes,
    Trait,
    alike,
    equal_sizes_rule,
    index_inputs,
    inside_rule,
    partial_rule,
    reduced_axes,
    rule,
    scalar,
    shape_rule,
    traits,
    value_rule,
)
from evener.graph.ops.states import (
    EXTREMES,
    REPLICATED,
    ROWS,
    SUM,
    SUMS,
    WHOLE,
    Decision,
    Partial,
    Sharded,
    State,
    integer,
    is_inexact,
    known,
    numbers_of,
    require,
    shape_of,
    sharded,
)

broadcasting("""
Add AddV2 Div DivNoNan FloorDiv FloorMod Maximum Minimum Mod Mul MulNoNan Pow RealDiv
SquaredDifference Sub TruncateDiv TruncateMod
""")
rule("AddN", inputs=ROWS)(elementwise)
equal_sizes_rule("AddN")(alike)
traits("Add AddN AddV2 Mul RealDiv Sub", IN_PLACE)
traits("AddN AddV2 Maximum Minimum Mul MulNoNan SquaredDifference Sub", TOTAL)
traits("Div DivNoNan FloorDiv FloorMod Pow RealDiv", Trait.TOTAL_ON_FLOATS)
traits("Div FloorDiv FloorMod", Trait.DIVISION)
traits("AddN", EVERY_ELEMENT)
index_inputs("AddV2", slice(None))


@shape_rule("AddN")
def _sum_shape(table: SymbolTable, node: Node) -> Shapes:
    return [next((t.shape for t in node.inputs if t.shape is not None), None)]


@value_rule("Neg")
def _neg(table: SymbolTable, node: Node) -> Shapes:
    value = node.inputs[0].value
    return None if value is None else [tuple(number * -1 for number in value)]


@value_rule(
    "Add", "AddV2", "Sub", "Mul", "FloorDiv", "FloorMod", "Maximum", "Minimum", "TruncateDiv"
)
def _arithmetic(table: SymbolTable, node: Node) -> Shapes:
    left, right = node.inputs
    result = node.outputs[0]
    b, shape = numbers_of(right), shape_of(result)
    if node.op == "FloorMod" and left.value is None and shape == (len(b),):
        # Remainders of numbers that are not known: those of 1 are 0.
        return [
            tuple(
                0 if divisor == 1 else table.new_symbol(result, None, index)
                for index, divisor in enumerate(b)
            )
        ]
    require(len(shape) <= 1)
    length = integer(shape[0]) if shape else 1
    a, b = (v * length if len(v) == 1 else v for v in (numbers_of(left), b))
    require(len(a) == len(b))
    pairs = enumerate(zip(a, b, strict=True))
    return [tuple(_computed(table, node, x, y, index) for index, (x, y) in pairs)]


def _computed(table: SymbolTable, node: Node, a: Size, b: Size, index: int) -> Size:
    op = node.op
    if op in ("Add", "AddV2"):
        return a + b
    if op == "Sub":
        return a - b
    if op == "Mul":
        return a * b
    if isinstance(a, int) and isinstance(b, int):
        numbers = {"Maximum": max(a, b), "Minimum": min(a, b)}
        if op in numbers:
            return numbers[op]
        if b:
            truncated = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return {"FloorMod": a % b, "FloorDiv": a // b, "TruncateDiv": truncated}[op]
    if op in ("Maximum", "Minimum") and a == b:
        return a
    # A number that is computed from data may be 0, and then the division fails; and it may wrap.
    is_made_of_sizes = table.is_made_of_sizes(a) and table.is_made_of_sizes(b)
    quotient = divide(a, b) if is_made_of_sizes else None
    if quotient is not None and op in ("FloorDiv", "TruncateDiv"):
        return quotient
    if quotient is not None and op == "FloorMod":
        return 0
    result = node.outputs[0]
    # A number that wraps is another one in another dtype.
    return table.symbol_for((op, a, b, is_made_of_sizes or result.dtype), result, index)


@partial_rule("Mul", inputs=SUMS)
@partial_rule("RealDiv", "Div", "DivNoNan", inputs=(SUMS, WHOLE), inexact=True)
def _scale(node: Node, states: Sequence[State]) -> Decision | None:
    """A partial sum times or over a number is one, if that is finite, not 0 and not too large.

    Otherwise the parts would give inf - inf, which is no number: 1 / 0 - 3 / 0 for -2 / 0, or 0 for
    the product of 0 and a sum that is infinite. And where each term overflows, their sum need not.
    """
    number, terms = node.inputs if states[0] != SUM else reversed(node.inputs)
    require(_is_moderate(number, divides=node.op != "Mul"))
    require(is_not_zero(number) or (node.op == "DivNoNan" and is_count(number)))
    require({*states} == {SUM, REPLICATED} and shape_of(terms) == node.outputs[0].shape)
    return Decision(inputs=tuple(states), outputs=(SUM,))


@partial_rule("Add", "AddV2", "AddN", "Sub", inputs=SUMS)
def _add(node: Node, states: Sequence[State]) -> Decision | None:
    """A sum of partial sums; a replicated term would be counted once per part."""
    require(set(states) == {SUM} and len({shape_of(t) for t in node.inputs}) == 1)
    return Decision(inputs=tuple(states), outputs=(SUM,))


@inside_rule("Add", "AddV2", "AddN", "Sub", inputs=SUMS)
def _add_once(node: Node, states: Sequence[State]) -> Decision | None:
    """In a body, where nothing is combined, one part adds what all of them have."""
    sums = [t for t, state in zip(node.inputs, states, strict=True) if state == SUM]
    require(0 < len(sums) < len(states))
    require(all(shape_of(t) == node.outputs[0].shape for t in sums))

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        attrs = {"T": node.outputs[0].dtype}
        # A single row is in one of the parts, also where none has samples.
        row = builder.number(Sharded(0, rows=1).in_part, tf.int32)
        has_row = builder.op("Greater", [row, builder.constant(0, tf.int32)], {"T": tf.int32})
        zero = builder.constant(0, node.outputs[0].dtype)
        terms = list(inputs)
        for index, state in enumerate(states):
            if state != SUM:
                [terms[index]] = builder.op("SelectV2", [*has_row, terms[index], zero], attrs)
        return builder.copy(node.op, node.name, terms, node.attrs)

    return Decision(inputs=tuple(states), outputs=(SUM,), lower=lower)


@partial_rule("Maximum", "Minimum", "LogicalAnd", "LogicalOr", inputs=EXTREMES)
def _extreme(node: Node, states: Sequence[State]) -> Decision | None:
    combine = {"Maximum": "max", "Minimum": "min", "LogicalAnd": "all", "LogicalOr": "any"}
    state = Partial(combine[node.op])
    require(set(states) == {state} and node.inputs[0].shape == node.inputs[1].shape)
    return Decision(inputs=tuple(states), outputs=(state,))


def is_not_zero(tensor: Tensor) -> bool:
    """Return whether a tensor is certain to be finite and not 0: a constant, or a size."""
    if is_count(tensor):
        return all(is_at_least(size, 1) for size in tensor.node.inputs[0].value or ())
    array = constant_array(tensor)
    return array is not None and bool(np.all(np.isfinite(array) & (array != 0)))


def _is_moderate(tensor: Tensor, *, divides: bool) -> bool:
    """Return whether a number makes a term at most so many times as large as a size does.

    Types of few bits have no room for that: there it makes nothing larger.
    """
    array = constant_array(tensor)
    if array is None:
        return is_count(tensor)
    has_room = tensor.dtype.real_dtype.max >= tf.int32.max
    limit = float(tf.int32.max) if has_room else 1.0
    sizes = np.abs(array.astype(np.complex128 if tensor.dtype.is_complex else np.float64))
    return bool(np.all(sizes >= 1 / limit if divides else sizes <= limit))


def is_count(tensor: Tensor) -> bool:
    """Return whether a tensor is made of sizes alone, as numbers that are finite for certain."""
    return (
        tensor.node.op == "Cast"
        and tensor.node.inputs[0].is_sizes
        and tensor.dtype.real_dtype.max >= tf.int32.max
    )


COMBINE = {"Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod", "All": "all", "Any": "any"}


@shape_rule(*COMBINE, "Mean", "EuclideanNorm", "ArgMax", "ArgMin")
def _reduction_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = shape_of(node.inputs[0])
    gone = known(reduced_axes(shape, node.inputs[1].value))
    if node.bool_attr("keep_dims"):
        return [tuple(1 if k in gone else size for k, size in enumerate(shape))]
    return [tuple(size for k, size in enumerate(shape) if k not in gone)]


@value_rule("Prod", "Sum", "Max", "Min")
def _reduce(table: SymbolTable, node: Node) -> Shapes:
    value, shape = numbers_of(node.inputs[0]), shape_of(node.inputs[0])
    axes = known(reduced_axes(shape, node.inputs[1].value))
    if shape and not axes:
        return [value]
    if node.op == "Prod":
        return [(product(value),)]
    if node.op == "Sum":
        return [(sum(value),)]
    if len(set(value)) == 1:
        return [value[:1]]
    require(len(value) > 0)
    return [((max if node.op == "Max" else min)(map(integer, value)),)]


@rule(*COMBINE, "Mean", "EuclideanNorm", "ArgMax", "ArgMin", inputs=(ROWS, WHOLE))
def _reduction(node: Node, states: Sequence[State]) -> Decision | None:
    """Over other axes every part by itself; over the batch a partial result."""
    shape, state = shape_of(node.inputs[0]), sharded(states[0])
    gone = known(reduced_axes(shape, node.inputs[1].value))
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
    require(node.op == "Mean" and is_inexact(node.outputs[0]))
    count = product(shape[k] for k in sorted(gone))

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        own_dtype = dtype = node.outputs[0].dtype
        # Kernels of means add in float32, but for the one of float16 on a CPU.
        is_wide = node.xla or not builder.may_be_on_cpu
        if dtype == tf.bfloat16 or (dtype == tf.float16 and is_wide):
            dtype = tf.float32
        terms = builder.cast(inputs[0], own_dtype, dtype)
        total = builder.op("Sum", [terms, inputs[1]], {**node.attrs, "T": dtype})
        mean = builder.op("RealDiv", [*total, builder.number(count, dtype)], {"T": dtype})[0]
        return [builder.cast(mean, dtype, own_dtype)]

    return Decision(inputs=(state, REPLICATED), outputs=(SUM,), lower=lower, lower_rows=state.rows)


@rule("L2Loss", inputs=ROWS)
def _l2_loss(node: Node, states: Sequence[State]) -> Decision | None:
    return Decision(inputs=(sharded(states[0]),), outputs=(SUM,))


@partial_rule("Sum", inputs=(SUMS, WHOLE))
@partial_rule("Mean", inputs=(SUMS, WHOLE), inexact=True)
@partial_rule("Max", "Min", "All", "Any", inputs=(EXTREMES, WHOLE))
def _of_partial(node: Node, states: Sequence[State]) -> Decision | None:
    """The sum of partial sums over another axis is a partial sum; so with extremes."""
    require(states[0] == Partial(COMBINE.get(node.op, "sum")))
    return Decision(inputs=tuple(states), outputs=(states[0],))


shape_rule("L2Loss")(scalar)
traits("All Any L2Loss Max Mean Min Prod Sum", TOTAL)
