"""Sums, products and quotients: of tensors, of sizes, of partial sums, of matrices; reductions.

Products of matrices go by the axis of the batch, linear algebra by the matrices of every row::

    x [B, m] @ w [m, n]       rows of x            -> rows of the result
    x^T [m, B] @ g [B, n]     sums over samples    -> partial sum
    x [B, m] @ y^T [m, B]     rows of x, all of y  -> rows of the result
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import add, mul, sub

import numpy as np
import tensorflow as tf

from evener.graph.dims import Dim, Size, divide, is_at_least, product
from evener.graph.functions import FunctionBuilder
from evener.graph.nodes import Node, SymbolTable, Tensor, constant_array, num_elements, sizes_of
from evener.graph.ops.elementwise import broadcasting, elementwise, operand_state
from evener.graph.ops.registry import (
    Shapes,
    Trait,
    alike,
    behind,
    beside,
    beside_last,
    broadcast,
    equal_sizes_rule,
    flops_rule,
    index_inputs,
    inside_rule,
    last_axes,
    like_input,
    partial_rule,
    reduced_axes,
    rule,
    shape_by_axes,
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
    by_rows,
    first_sharded,
    integer,
    integers_of,
    is_inexact,
    is_shardable,
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
traits("Add AddN AddV2 Mul RealDiv Sub", Trait.IN_PLACE)
traits("AddN AddV2 Maximum Minimum Mul MulNoNan SquaredDifference Sub", Trait.TOTAL)
traits("Div DivNoNan FloorDiv FloorMod Pow RealDiv", Trait.TOTAL_ON_FLOATS)
traits("Div FloorDiv FloorMod", Trait.DIVISION)
traits("AddN", Trait.EVERY_ELEMENT)
index_inputs("AddV2", slice(None))


value_rule.table({"Neg": lambda table, node: [tuple(n * -1 for n in numbers_of(node.inputs[0]))]})


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


_POLYNOMIAL = {"Add": add, "AddV2": add, "Sub": sub, "Mul": mul}


def _computed(table: SymbolTable, node: Node, a: Size, b: Size, index: int) -> Size:
    op = node.op
    if op in _POLYNOMIAL:
        return _POLYNOMIAL[op](a, b)
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


def _kept_axes(node: Node, rank: int) -> list[int | None]:
    gone = known(reduced_axes(shape_of(node.inputs[0]), node.inputs[1].value))
    axes = [None if axis in gone else axis for axis in range(rank)]
    return axes if node.bool_attr("keep_dims") else [axis for axis in axes if axis is not None]


shape_rule(*COMBINE, "Mean", "EuclideanNorm", "ArgMax", "ArgMin")(shape_by_axes(_kept_axes))


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
    axes = _kept_axes(node, len(shape))
    if state.axis in axes:
        return by_rows(node, state, state.at(axes.index(state.axis)))
    if node.op in COMBINE:
        # TensorFlow rewrites max(log(x)) to log(max(x)), which of no samples is log(-inf).
        needs_samples = node.op in ("Max", "Min") and node.outputs[0].dtype.is_floating
        return by_rows(node, state, Partial(COMBINE[node.op]), needs_samples=needs_samples)
    require(node.op == "Mean" and is_inexact(node.outputs[0]))
    count = product(size for axis, size in enumerate(shape) if axis not in axes)

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


@partial_rule("Sum", inputs=(SUMS, WHOLE))
@partial_rule("Mean", inputs=(SUMS, WHOLE), inexact=True)
@partial_rule("Max", "Min", "All", "Any", inputs=(EXTREMES, WHOLE))
def _of_partial(node: Node, states: Sequence[State]) -> Decision | None:
    """The sum of partial sums over another axis is a partial sum; so with extremes."""
    require(states[0] == Partial(COMBINE.get(node.op, "sum")))
    return Decision(inputs=tuple(states), outputs=(states[0],))


rule("L2Loss", inputs=ROWS)(lambda node, states: by_rows(node, sharded(states[0]), SUM))
shape_rule.table(
    {
        "L2Loss": lambda table, node: [()],
        "AddN": lambda table, node: [
            next((t.shape for t in node.inputs if t.shape is not None), None)
        ],
    }
)
traits("All Any L2Loss Max Mean Min Prod Sum", Trait.TOTAL)


PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})


def labels_of(node: Node) -> tuple[list[list[str]], list[str]] | None:
    if node.op == "Einsum":
        left, right = node.text_attr("equation").split("->")
        if "." in left + right:
            return None
        return [list(labels) for labels in left.split(",")], list(right)
    if node.op not in PRODUCTS:
        return None
    ranks = [t.rank for t in node.inputs]
    if ranks[0] is None or ranks[1] is None:
        return None
    turn = _turned(node)
    rank = max(ranks[0], ranks[1])
    outer = [f"o{k}" for k in range(rank - 2)]
    first, second = ["m", "k"], ["k", "n"]
    a = outer[len(outer) - (ranks[0] - 2) :] + (first[::-1] if turn[0] else first)
    b = outer[len(outer) - (ranks[1] - 2) :] + (second[::-1] if turn[1] else second)
    return [a, b], [*outer, "m", "n"]


def _turned(node: Node) -> tuple[bool, bool]:
    return (
        node.bool_attr("transpose_a") or node.bool_attr("adj_x"),
        node.bool_attr("transpose_b") or node.bool_attr("adj_y"),
    )


@shape_rule(*PRODUCTS, "SparseMatMul")
def _matmul_shape(table: SymbolTable, node: Node) -> Shapes:
    (a, b), (turns_a, turns_b) = (shape_of(t) for t in node.inputs), _turned(node)
    outer = known(broadcast([a[:-2], b[:-2]]))
    return [(*outer, a[-1 if turns_a else -2], b[-2 if turns_b else -1])]


@shape_rule("Einsum")
def _einsum_shape(table: SymbolTable, node: Node) -> Shapes:
    operands, result = known(labels_of(node))
    sizes: dict[str, Size] = {}
    for labels, tensor in zip(operands, node.inputs, strict=True):
        shape = shape_of(tensor)
        require(len(labels) == len(shape))
        for label, size in zip(labels, shape, strict=True):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    return [tuple(sizes[label] for label in result)]


@equal_sizes_rule(*PRODUCTS, "Einsum")
def _equalsizes_of(node: Node) -> Iterator[tuple[Size, Size]]:
    labels, sizes = labels_of(node), dict[str, Size]()
    for operand, tensor in zip(labels[0] if labels else (), node.inputs, strict=False):
        for label, size in zip(operand, tensor.shape or (), strict=False):
            if isinstance(size, Dim):
                yield sizes.setdefault(label, size), size


@rule(*PRODUCTS, "Einsum", inputs=ROWS)
def _contraction(node: Node, states: Sequence[State]) -> Decision | None:
    """Every axis has a label; the label of the sharded axis says what the parts compute."""
    operands, result = known(labels_of(node))
    shapes = [t.shape for t in node.inputs]
    for index, state in enumerate(states):
        if not isinstance(state, Sharded):
            continue
        label = operands[index][state.axis]
        decision = _by_label(operands, result, shapes, label, state)
        # Where an operand has one row for all, an einsum takes it in batches of one alone.
        is_broadcast = any(
            label in labels and shape and shape[labels.index(label)] == 1
            for labels, shape in zip(operands, shapes, strict=True)
        )
        if decision is not None and not (node.op == "Einsum" and is_broadcast):
            return decision
    return None


def _by_label(
    operands: list[list[str]],
    result: list[str],
    shapes: Sequence[tuple[Size, ...] | None],
    label: str,
    of_label: Sharded,
) -> Decision | None:
    wanted: list[State] = []
    sizes = set()
    for labels, shape in zip(operands, shapes, strict=True):
        if label not in labels:
            wanted.append(REPLICATED)
            continue
        if labels.count(label) > 1 or shape is None:
            return None
        axis = labels.index(label)
        if shape[axis] == 1:
            # Broadcast: all parts use the one row.
            wanted.append(REPLICATED)
            continue
        state = of_label.at(axis)
        if not is_shardable(shape, state):
            return None
        sizes.add(shape[axis])
        wanted.append(state)
    if len(sizes) != 1 or result.count(label) > 1:
        return None
    if label in result:
        return Decision(inputs=tuple(wanted), outputs=(of_label.at(result.index(label)),))
    if any(
        label in labels and state == REPLICATED
        for labels, state in zip(operands, wanted, strict=True)
    ):
        return None
    return Decision(inputs=tuple(wanted), outputs=(SUM,))


@flops_rule(*PRODUCTS)
def _matmul_flops(node: Node, num_samples: int) -> float:
    inner = sizes_of(node.inputs[0], num_samples)[-2 if _turned(node)[0] else -1]
    return 2 * inner * num_elements(node.outputs[0], num_samples)


@flops_rule("Einsum", "XlaEinsum")
def _einsum_flops(node: Node, num_samples: int) -> float:
    terms = node.text_attr("equation").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, node.inputs, strict=True):
        sizes.update(zip(term.replace("...", ""), sizes_of(tensor, num_samples), strict=False))
    return 2 * math.prod(sizes.values())


traits("Einsum MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3", Trait.COSTLY | Trait.OF_LAYERS)
traits("XlaEinsum", Trait.OF_LAYERS)


@shape_rule("MatrixDiagV3", "MatrixDiagPartV3")
def _diagonal_shape(table: SymbolTable, node: Node) -> Shapes:
    """TensorFlow knows the sizes of a matrix and of diagonals; the axes in front stay."""
    shape, diagonals = shape_of(node.inputs[0]), integers_of(node.inputs[1])
    if diagonals == (0,) and node.op == "MatrixDiagPartV3":
        return [shape[:-1]] if shape[-1] == shape[-2] else None
    if diagonals == (0,) and [t.value for t in node.inputs[2:-1]] == [(-1,), (-1,)]:
        return [(*shape, shape[-1])]
    inner = 1 if node.op == "MatrixDiagV3" and len(set(diagonals)) == 1 else 2
    static = known(node.static_shapes[0])
    require(len(shape) >= inner and None not in static[-inner:])
    return [behind(table, node.outputs[0], shape[: len(shape) - inner])]


@rule("MatrixDiagV3", inputs=(ROWS, WHOLE, WHOLE, WHOLE, WHOLE))
@rule("MatrixDiagPartV3", inputs=(ROWS, WHOLE, WHOLE))
@rule("MatrixSetDiagV3", inputs=(ROWS, ROWS, WHOLE))
def _diagonals(node: Node, states: Sequence[State]) -> Decision | None:
    axes = last_axes(node.inputs[0], 1 if node.op == "MatrixDiagV3" else 2)
    decision, state = beside(node, states, axes), sharded(states[0])
    before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    require(is_shardable(after, state) and after[state.axis] == before[state.axis])
    if node.op == "MatrixSetDiagV3":
        return replace(decision, inputs=(state, state, REPLICATED))
    return decision


@shape_rule("MatrixSolve")
def _solution_shape(table: SymbolTable, node: Node) -> Shapes:
    matrix, right = map(shape_of, node.inputs)
    return [right] if matrix[:-2] == right[:-2] else None


@rule("MatrixSolve", "CholeskyGrad", "Cross", inputs=ROWS)
def _solve(node: Node, states: Sequence[State]) -> Decision | None:
    shapes, state = [shape_of(t) for t in node.inputs], first_sharded(states)
    ranks = {len(shape) for shape in shapes}
    require(len(ranks) <= 1 and all(is_shardable(shape, state) for shape in shapes))
    require(state.axis < ranks.pop() - (1 if node.op == "Cross" else 2))
    return Decision(inputs=(state,) * len(states), outputs=(state,))


@shape_rule("BandedTriangularSolve", "MatrixTriangularSolve")
def _broadcast_solution(table: SymbolTable, node: Node) -> Shapes:
    """The axes in front of the matrices are broadcast."""
    matrix, right = (shape_of(t) for t in node.inputs)
    return [(*known(broadcast([matrix[:-2], right[:-2]])), *right[-2:])]


@rule("MatrixTriangularSolve", "BandedTriangularSolve", inputs=ROWS)
@rule("TridiagonalSolve", "TridiagonalMatMul", inputs=ROWS)
def _equations(node: Node, states: Sequence[State]) -> Decision | None:
    """Axes in front of the matrices are broadcast, as those of elementwise operations."""
    result = shape_of(node.outputs[0])
    for tensor, state in zip(node.inputs, states, strict=True):
        if not isinstance(state, Sharded) or tensor.shape is None:
            continue
        target = state.at(state.axis + len(result) - len(tensor.shape))
        if state.axis >= len(tensor.shape) - 2 or not 0 <= target.axis < len(result) - 2:
            continue
        if tensor.shape[state.axis] == result[target.axis]:
            wanted = tuple(operand_state(t, result, target) for t in node.inputs)
            return Decision(inputs=wanted, outputs=(target,), needs_samples=True)
    return None


rule("MatrixDiag", inputs=ROWS)(beside_last(1))
rule(
    *"MatrixInverse Cholesky MatrixDiagPart MatrixDeterminant LogMatrixDeterminant".split(),
    inputs=ROWS,
)(beside_last(2))
rule("MatrixBandPart", inputs=(ROWS, WHOLE, WHOLE))(beside_last(2))
shape_rule.table(
    {
        "Cholesky Cross MatrixBandPart MatrixInverse MatrixSetDiag MatrixSetDiagV3": like_input(0),
        "TridiagonalMatMul TridiagonalSolve": like_input(-1),
        "MatrixDeterminant LogMatrixDeterminant": lambda table, node: (
            [shape_of(node.inputs[0])[:-2]] * len(node.outputs)
        ),
    }
)


# How many last axes of its input an operation works on; those in front it leaves as they are.
INNER_AXES = {
    **dict.fromkeys("FFT IFFT RFFT IRFFT IsotonicRegression".split(), 1),
    **dict.fromkeys("FFT2D IFFT2D RFFT2D IRFFT2D".split(), 2),
    **dict.fromkeys("FFT3D IFFT3D RFFT3D IRFFT3D".split(), 3),
    **dict.fromkeys("Eig SelfAdjointEigV2 Svd Qr Lu".split(), 2),
    **dict.fromkeys("MatrixLogarithm MatrixSquareRoot MatrixExponential".split(), 2),
}


WITH_LENGTH = "RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D".split()


@shape_rule(*INNER_AXES)
def _per_row_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, inner = shape_of(node.inputs[0]), INNER_AXES[node.op]
    require(len(shape) >= inner)
    return [behind(table, tensor, shape[: len(shape) - inner]) for tensor in node.outputs]


@rule(*[op for op in INNER_AXES if op not in WITH_LENGTH], inputs=ROWS)
@rule(*WITH_LENGTH, inputs=(ROWS, WHOLE))
def _per_row(node: Node, states: Sequence[State]) -> Decision | None:
    """Axes in front of those that the operation works on; what was not asked for is empty."""
    decision = beside(node, states, last_axes(node.inputs[0], INNER_AXES[node.op]))
    pairs = zip(node.outputs, decision.outputs, strict=True)
    outputs = tuple(REPLICATED if t.shape == (0,) else state for t, state in pairs)
    return replace(decision, outputs=outputs)
