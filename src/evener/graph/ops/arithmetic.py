"""Sums, products and quotients.

Of tensors, of sizes, of partial sums over the batch; reductions over axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from evener.graph.dims import Size, divide, is_at_least, product
from evener.graph.nodes import Node, SymbolTable, Tensor, constant_array
from evener.graph.ops.elementwise import broadcasting, elementwise, is_sum
from evener.graph.ops.registry import (
    EVERY_ELEMENT,
    IN_PLACE,
    TOTAL,
    Shape,
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
    Builder,
    Decision,
    Partial,
    Sharded,
    State,
    numbers_of,
    shape_of,
    sharded,
)

# Sums, products and quotients: of tensors, of sizes, and of terms of sums over the batch.

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
    a, b = (t.value for t in node.inputs)
    shape = node.outputs[0].shape
    if node.op == "FloorMod" and a is None and b is not None and len(shape or ()) == 1:
        return _remainders(table, node, b)
    if a is None or b is None or shape is None or len(shape) > 1:
        return None
    length = shape[0] if shape else 1
    if not isinstance(length, int):
        return None
    a, b = (v * length if len(v) == 1 else v for v in (a, b))
    if len(a) != len(b):
        return None
    return [
        tuple(
            _computed(table, node, left, right, index)
            for index, (left, right) in enumerate(zip(a, b, strict=True))
        )
    ]


def _remainders(table: SymbolTable, node: Node, divisors: Shape) -> Shapes:
    """Return the remainders of numbers that are not known: those of 1 are 0."""
    result = node.outputs[0]
    if result.shape != (len(divisors),):
        return None
    return [
        tuple(
            0 if divisor == 1 else table.new_symbol(result, None, index)
            for index, divisor in enumerate(divisors)
        )
    ]


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
    first, second = states
    left, right = node.inputs
    number = right if is_sum(first) else left
    if not _is_moderate(number, divides=node.op != "Mul"):
        return None
    if not (is_not_zero(number) or (node.op == "DivNoNan" and is_count(number))):
        return None
    if is_sum(first) and second == REPLICATED and _keeps_size(node, left.shape):
        return Decision(inputs=(first, second), outputs=(first,))
    if node.op == "Mul" and is_sum(second) and first == REPLICATED:
        if _keeps_size(node, right.shape):
            return Decision(inputs=(first, second), outputs=(second,))
    return None


@partial_rule("Add", "AddV2", "AddN", "Sub", inputs=SUMS)
def _add(node: Node, states: Sequence[State]) -> Decision | None:
    """A sum of partial sums; a replicated term would be counted once per part."""
    if all(is_sum(state) for state in states):
        shapes = {t.shape for t in node.inputs}
        if len(shapes) == 1 and None not in shapes:
            return Decision(inputs=tuple(states), outputs=(states[0],))
    return None


@inside_rule("Add", "AddV2", "AddN", "Sub", inputs=SUMS)
def _add_once(node: Node, states: Sequence[State]) -> Decision | None:
    """In a body, where nothing is combined, one part adds what all of them have."""
    sums = [t for t, state in zip(node.inputs, states, strict=True) if is_sum(state)]
    if not 0 < len(sums) < len(states) or not all(_keeps_size(node, t.shape) for t in sums):
        return None

    def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        attrs = {"T": node.outputs[0].dtype}
        # A single row is in one of the parts, also where none has samples.
        row = builder.number(Sharded(0, rows=1).in_part, tf.int32)
        has_row = builder.op("Greater", [row, builder.constant(0, tf.int32)], {"T": tf.int32})
        zero = builder.constant(0, node.outputs[0].dtype)
        terms = list(inputs)
        for index, state in enumerate(states):
            if not is_sum(state):
                [terms[index]] = builder.op("SelectV2", [*has_row, terms[index], zero], attrs)
        return builder.copy(node.op, node.name, terms, node.attrs)

    return Decision(inputs=tuple(states), outputs=(SUM,), lower=lower)


@partial_rule("Maximum", "Minimum", "LogicalAnd", "LogicalOr", inputs=EXTREMES)
def _extreme(node: Node, states: Sequence[State]) -> Decision | None:
    combine = {"Maximum": "max", "Minimum": "min", "LogicalAnd": "all", "LogicalOr": "any"}
    state = Partial(combine[node.op])
    if set(states) == {state} and node.inputs[0].shape == node.inputs[1].shape:
        return Decision(inputs=tuple(states), outputs=(state,))
    return None


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


def _keeps_size(node: Node, shape: tuple[Size, ...] | None) -> bool:
    return shape is not None and shape == node.outputs[0].shape


# Sums, means and extremes over axes.

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
