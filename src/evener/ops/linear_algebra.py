"""Matrices of every row: inverses, diagonals, equations."""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.nodes import Node, Tensor, constant_array
from evener.graph.symbols import SymbolTable
from evener.ops.axes import behind, broadcast, like_input
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.elementwise import operand_state
from evener.ops.registry import Shapes, gathered, rule, shape_rule
from evener.ops.states import REPLICATED, Sharded, State, is_shardable


@rule("MatrixInverse", "Cholesky", "MatrixDiag", "MatrixDiagPart", inputs=ROWS)
@rule("MatrixBandPart", inputs=(ROWS, WHOLE, WHOLE))
def _per_matrix(node: Node, states: Sequence[State]) -> Decision | None:
    """One matrix after another, over all axes but the last two."""
    state, shape = states[0], node.inputs[0].shape
    num_inner = 1 if node.op == "MatrixDiag" else 2
    if shape is None or not isinstance(state, Sharded) or state.axis >= len(shape) - num_inner:
        return None
    others = (REPLICATED,) * (len(states) - 1)
    return Decision(inputs=(state, *others), outputs=(state,))


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
    shape, numbers = node.inputs[0].shape, [constant(t) for t in node.inputs[1:-1]]
    diagonals, static = numbers[0], node.static_shapes[0]
    if shape is None or diagonals is None:
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
    state, shape = states[0], node.inputs[0].shape
    inner = 1 if node.op == "MatrixDiagV3" else 2
    if shape is None or not isinstance(state, Sharded) or state.axis >= len(shape) - inner:
        return None
    out = node.outputs[0].shape
    if out is None or not is_shardable(out, state) or out[state.axis] != shape[state.axis]:
        return None
    if node.op == "MatrixSetDiagV3":
        return Decision(inputs=(state, state, REPLICATED), outputs=(state,))
    return Decision(inputs=(state, *[REPLICATED] * (len(states) - 1)), outputs=(state,))


@shape_rule("MatrixDeterminant", "LogMatrixDeterminant")
def _determinant_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    return None if shape is None else [shape[:-2]] * len(node.outputs)


@rule("MatrixDeterminant", "LogMatrixDeterminant", inputs=ROWS)
def _determinant(node: Node, states: Sequence[State]) -> Decision | None:
    state, shape = states[0], node.inputs[0].shape
    if shape is None or not isinstance(state, Sharded) or state.axis >= len(shape) - 2:
        return None
    return Decision(inputs=(state,), outputs=(state,) * len(node.outputs))


@shape_rule("MatrixSolve")
def _solution_shape(table: SymbolTable, node: Node) -> Shapes:
    matrix, right = (t.shape for t in node.inputs)
    if matrix is None or right is None or matrix[:-2] != right[:-2]:
        return None
    return [right]


@rule("MatrixSolve", "CholeskyGrad", inputs=ROWS)
def _solve(node: Node, states: Sequence[State]) -> Decision | None:
    shapes = [t.shape for t in node.inputs]
    state = next((s for s in states if isinstance(s, Sharded)), None)
    if state is None or any(s is None or len(s) != len(shapes[0] or ()) for s in shapes):
        return None
    if not all(is_shardable(shape, state) for shape in shapes):
        return None
    if state.axis >= len(shapes[0] or ()) - 2:
        return None
    return Decision(inputs=(state,) * len(states), outputs=(state,))


@shape_rule("BandedTriangularSolve", "MatrixTriangularSolve")
def _broadcast_solution(table: SymbolTable, node: Node) -> Shapes:
    """The axes in front of the matrices are broadcast."""
    matrix, right = (t.shape for t in node.inputs)
    if matrix is None or right is None:
        return None
    front = broadcast([matrix[:-2], right[:-2]])
    return None if front is None else [(*front, *right[-2:])]


@rule("MatrixTriangularSolve", "BandedTriangularSolve", inputs=ROWS)
@rule("TridiagonalSolve", "TridiagonalMatMul", inputs=ROWS)
def _equations(node: Node, states: Sequence[State]) -> Decision | None:
    """Axes in front of the matrices are broadcast, as those of elementwise operations."""
    result = node.outputs[0].shape
    if result is None:
        return None
    for tensor, state in zip(node.inputs, states, strict=True):
        if not isinstance(state, Sharded) or tensor.shape is None:
            continue
        target = state.at(state.axis + len(result) - len(tensor.shape))
        if state.axis >= len(tensor.shape) - 2 or not 0 <= target.axis < len(result) - 2:
            continue
        if tensor.shape[state.axis] != result[target.axis]:
            continue
        wanted = [operand_state(t.shape, result, target) for t in node.inputs]
        known = tuple(one for one in wanted if one is not None)
        if len(known) < len(wanted):
            return None
        return Decision(inputs=known, outputs=(target,), needs_samples=True)
    return None


@rule("Cross", inputs=ROWS)
def _cross(node: Node, states: Sequence[State]) -> Decision | None:
    state, shape = next((s for s in states if isinstance(s, Sharded)), None), node.inputs[0].shape
    if state is None or shape is None or state.axis == len(shape) - 1:
        return None
    if not all(is_shardable(tensor.shape, state) for tensor in node.inputs):
        return None
    return Decision(inputs=(state, state), outputs=(state,))


shape_rule(
    "Cholesky", "Cross", "MatrixBandPart", "MatrixInverse", "MatrixSetDiag", "MatrixSetDiagV3"
)(like_input(0))
shape_rule("TridiagonalMatMul", "TridiagonalSolve")(like_input(-1))
gathered("Diag DiagPart", "It relates every sample to every other one.")
