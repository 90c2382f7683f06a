"""Matrices of every row: inverses, diagonals, equations, decompositions; spectra."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evener.graph.constants import constant_array
from evener.graph.nodes import Node, Tensor
from evener.graph.symbols import SymbolTable
from evener.ops.axes import behind, beside, beside_last, broadcast, last_axes, like_input
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.elementwise import operand_state
from evener.ops.known import first_sharded, shape_of, sharded
from evener.ops.registry import Shapes, rule, shape_rule
from evener.ops.states import REPLICATED, Sharded, State, is_shardable


def constant(tensor: Tensor) -> list[int] | None:
    """Return the integers of a constant of any rank, flat, or None if it is none."""
    array = constant_array(tensor)
    if array is not None:
        return [int(n) for n in array.ravel()]
    numbers = [n for n in tensor.value or () if isinstance(n, int)]
    return numbers if tensor.value and len(numbers) == len(tensor.value) else None


@shape_rule("MatrixDiagV3", "MatrixDiagPartV3")
def _diagonal_shape(table: SymbolTable, node: Node) -> Shapes:
    """TensorFlow knows the sizes of a matrix and of diagonals; the axes in front stay."""
    shape, numbers = shape_of(node.inputs[0]), [constant(t) for t in node.inputs[1:-1]]
    diagonals, static = numbers[0], node.static_shapes[0]
    if diagonals is None:
        return None
    if diagonals == [0] and node.op == "MatrixDiagV3" and numbers[1:] == [[-1], [-1]]:
        return [(*shape, shape[-1])]
    if diagonals == [0] and node.op == "MatrixDiagPartV3":
        return [shape[:-1]] if shape[-1] == shape[-2] else None
    inner = 1 if node.op == "MatrixDiagV3" and len(set(diagonals)) == 1 else 2
    if static is None or len(shape) < inner or any(size is None for size in static[-inner:]):
        return None
    front = shape[: len(shape) - inner]
    return [behind(table, node.outputs[0], front)]


@rule("MatrixDiagV3", inputs=(ROWS, WHOLE, WHOLE, WHOLE, WHOLE))
@rule("MatrixDiagPartV3", inputs=(ROWS, WHOLE, WHOLE))
@rule("MatrixSetDiagV3", inputs=(ROWS, ROWS, WHOLE))
def _diagonals(node: Node, states: Sequence[State]) -> Decision | None:
    axes = last_axes(node.inputs[0], 1 if node.op == "MatrixDiagV3" else 2)
    decision, state = beside(node, states, axes), sharded(states[0])
    before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if not is_shardable(after, state) or after[state.axis] != before[state.axis]:
        return None
    if node.op == "MatrixSetDiagV3" and decision is not None:
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
    if len(ranks) > 1 or not all(is_shardable(shape, state) for shape in shapes):
        return None
    if state.axis >= ranks.pop() - 2:
        return None
    return Decision(inputs=(state,) * len(states), outputs=(state,))


@shape_rule("BandedTriangularSolve", "MatrixTriangularSolve")
def _broadcast_solution(table: SymbolTable, node: Node) -> Shapes:
    """The axes in front of the matrices are broadcast."""
    matrix, right = (shape_of(t) for t in node.inputs)
    front = broadcast([matrix[:-2], right[:-2]])
    return None if front is None else [(*front, *right[-2:])]


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
        if tensor.shape[state.axis] != result[target.axis]:
            continue
        wanted = [operand_state(t.shape, result, target) for t in node.inputs]
        known = tuple(needed for needed in wanted if needed is not None)
        if len(known) < len(wanted):
            return None
        return Decision(inputs=known, outputs=(target,), needs_samples=True)
    return None


@rule("Cross", inputs=ROWS)
def _cross(node: Node, states: Sequence[State]) -> Decision | None:
    state = first_sharded(states)
    if state.axis in last_axes(node.inputs[0], 1):
        return None
    if not all(is_shardable(tensor.shape, state) for tensor in node.inputs):
        return None
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
    if len(shape) < inner:
        return None
    return [behind(table, tensor, shape[: len(shape) - inner]) for tensor in node.outputs]


@rule(*ALONE, inputs=ROWS)
@rule(*WITH_LENGTH, inputs=(ROWS, WHOLE))
def _per_row(node: Node, states: Sequence[State]) -> Decision | None:
    """Axes in front of those that the operation works on; what was not asked for is empty."""
    decision = beside(node, states, last_axes(node.inputs[0], INNER_AXES[node.op]))
    if decision is None:
        return None
    pairs = zip(node.outputs, decision.outputs, strict=True)
    outputs = tuple(REPLICATED if t.shape == (0,) else state for t, state in pairs)
    return replace(decision, outputs=outputs)
