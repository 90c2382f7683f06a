"""Matrix products by the axis of the batch, and the linear algebra of the matrices of every row.

x [B, m] @ w [m, n]       rows of x            -> rows of the result
x^T [m, B] @ g [B, n]     sums over samples    -> partial sum
x [B, m] @ y^T [m, B]     rows of x, all of y  -> rows of the result
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from evener.graph.dims import Dim, Size
from evener.graph.nodes import Node, SymbolTable, num_elements, sizes_of
from evener.graph.ops.elementwise import operand_state
from evener.graph.ops.registry import (
    Shapes,
    Trait,
    behind,
    beside,
    beside_last,
    broadcast,
    equal_sizes_rule,
    flops_rule,
    last_axes,
    like_input,
    rule,
    shape_rule,
    traits,
)
from evener.graph.ops.states import (
    REPLICATED,
    ROWS,
    SUM,
    WHOLE,
    Decision,
    Sharded,
    State,
    first_sharded,
    integers_of,
    is_shardable,
    known,
    require,
    shape_of,
    sharded,
)

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
    if node.op == "MatMul":
        turn = (node.bool_attr("transpose_a"), node.bool_attr("transpose_b"))
    else:
        turn = (node.bool_attr("adj_x"), node.bool_attr("adj_y"))
    rank = max(ranks[0], ranks[1])
    outer = [f"o{k}" for k in range(rank - 2)]
    first, second = ["m", "k"], ["k", "n"]
    a = outer[len(outer) - (ranks[0] - 2) :] + (first[::-1] if turn[0] else first)
    b = outer[len(outer) - (ranks[1] - 2) :] + (second[::-1] if turn[1] else second)
    return [a, b], [*outer, "m", "n"]


@shape_rule("MatMul", "SparseMatMul")
def _matmul_shape(table: SymbolTable, node: Node) -> Shapes:
    a, b = (shape_of(t) for t in node.inputs)
    rows = a[1] if node.bool_attr("transpose_a") else a[0]
    columns = b[0] if node.bool_attr("transpose_b") else b[1]
    return [(rows, columns)]


@shape_rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batch_matmul_shape(table: SymbolTable, node: Node) -> Shapes:
    a, b = (shape_of(t) for t in node.inputs)
    outer = known(broadcast([a[:-2], b[:-2]]))
    rows = a[-1] if node.bool_attr("adj_x") else a[-2]
    columns = b[-2] if node.bool_attr("adj_y") else b[-1]
    return [(*outer, rows, columns)]


@shape_rule("Einsum")
def _einsum_shape(table: SymbolTable, node: Node) -> Shapes:
    left, right = node.text_attr("equation").split("->")
    require("." not in left + right)
    sizes: dict[str, Size] = {}
    for labels, tensor in zip(left.split(","), node.inputs, strict=True):
        shape = shape_of(tensor)
        require(len(labels) == len(shape))
        for label, size in zip(labels, shape, strict=True):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    return [tuple(sizes[label] for label in right)]


@equal_sizes_rule(*PRODUCTS, "Einsum")
def _equalsizes_of(node: Node) -> Iterator[tuple[Size, Size]]:
    labels, sizes = labels_of(node), dict[str, Size]()
    for operand, tensor in zip(labels[0] if labels else (), node.inputs, strict=False):
        for label, size in zip(operand, tensor.shape or (), strict=False):
            if isinstance(size, Dim):
                yield sizes.setdefault(label, size), size


@rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", inputs=ROWS)
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
    turned = node.bool_attr("transpose_a") or node.bool_attr("adj_x")
    inner = sizes_of(node.inputs[0], num_samples)[-2 if turned else -1]
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
    front = shape[: len(shape) - inner]
    return [behind(table, node.outputs[0], front)]


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


@shape_rule("MatrixDeterminant", "LogMatrixDeterminant")
def _determinant_shape(table: SymbolTable, node: Node) -> Shapes:
    return [shape_of(node.inputs[0])[:-2]] * len(node.outputs)


@shape_rule("MatrixSolve")
def _solution_shape(table: SymbolTable, node: Node) -> Shapes:
    matrix, right = map(shape_of, node.inputs)
    return [right] if matrix[:-2] == right[:-2] else None


@rule("MatrixSolve", "CholeskyGrad", inputs=ROWS)
def _solve(node: Node, states: Sequence[State]) -> Decision | None:
    shapes, state = [shape_of(t) for t in node.inputs], first_sharded(states)
    ranks = {len(shape) for shape in shapes}
    require(len(ranks) <= 1 and all(is_shardable(shape, state) for shape in shapes))
    require(state.axis < ranks.pop() - 2)
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


@rule("Cross", inputs=ROWS)
def _cross(node: Node, states: Sequence[State]) -> Decision | None:
    state = first_sharded(states)
    require(state.axis not in last_axes(node.inputs[0], 1))
    require(all(is_shardable(tensor.shape, state) for tensor in node.inputs))
    return Decision(inputs=(state, state), outputs=(state,))


rule("MatrixDiag", inputs=ROWS)(beside_last(1))
rule("MatrixInverse", "Cholesky", "MatrixDiagPart", inputs=ROWS)(beside_last(2))
rule("MatrixDeterminant", "LogMatrixDeterminant", inputs=ROWS)(beside_last(2))
rule("MatrixBandPart", inputs=(ROWS, WHOLE, WHOLE))(beside_last(2))
shape_rule(
    "Cholesky", "Cross", "MatrixBandPart", "MatrixInverse", "MatrixSetDiag", "MatrixSetDiagV3"
)(like_input(0))
shape_rule("TridiagonalMatMul", "TridiagonalSolve")(like_input(-1))


INNER_AXES = {
    **dict.fromkeys("FFT IFFT RFFT IRFFT IsotonicRegression".split(), 1),
    **dict.fromkeys("FFT2D IFFT2D RFFT2D IRFFT2D".split(), 2),
    **dict.fromkeys("FFT3D IFFT3D RFFT3D IRFFT3D".split(), 3),
    **dict.fromkeys("Eig SelfAdjointEigV2 Svd Qr Lu".split(), 2),
    **dict.fromkeys("MatrixLogarithm MatrixSquareRoot MatrixExponential".split(), 2),
}
"""How many last axes of its input an operation works on; those in front it leaves as they are."""


WITH_LENGTH = "RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D".split()


ALONE = [op for op in INNER_AXES if op not in WITH_LENGTH]


@shape_rule(*INNER_AXES)
def _per_row_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, inner = shape_of(node.inputs[0]), INNER_AXES[node.op]
    require(len(shape) >= inner)
    return [behind(table, tensor, shape[: len(shape) - inner]) for tensor in node.outputs]


@rule(*ALONE, inputs=ROWS)
@rule(*WITH_LENGTH, inputs=(ROWS, WHOLE))
def _per_row(node: Node, states: Sequence[State]) -> Decision | None:
    """Axes in front of those that the operation works on; what was not asked for is empty."""
    decision = beside(node, states, last_axes(node.inputs[0], INNER_AXES[node.op]))
    pairs = zip(node.outputs, decision.outputs, strict=True)
    outputs = tuple(REPLICATED if t.shape == (0,) else state for t, state in pairs)
    return replace(decision, outputs=outputs)
