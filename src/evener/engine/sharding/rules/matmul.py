"""Matrix products, by the axis of the batch: a row of the result, or a sum over samples.

::

    x [B, m] @ w [m, n]       rows of x            -> rows of the result
    x^T [m, B] @ g [B, n]     sums over samples    -> partial sum
    x [B, m] @ y^T [m, B]     rows of x, all of y  -> rows of the result
"""

from __future__ import annotations

from collections.abc import Sequence

from evener.engine.trace.labels import labels_of
from evener.graph.dims import Size
from evener.graph.nodes import Node
from evener.ops.decision import ROWS, WHOLE, Decision, rule
from evener.ops.states import REPLICATED, SUM, Sharded, State, is_shardable

Labels = tuple[list[str], list[str], list[str]]


@rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", inputs=ROWS)
def contraction(node: Node, states: Sequence[State]) -> Decision | None:
    """Every axis has a label; the label of the sharded axis says what the parts compute."""
    labels = labels_of(node)
    if labels is None:
        return None
    operands, result = labels
    shapes = [t.shape for t in node.inputs]
    for index, state in enumerate(states):
        if not isinstance(state, Sharded):
            continue
        label = operands[index][state.axis]
        decision = _by_label(operands, result, shapes, label, state)
        if decision is not None and not (
            node.op == "Einsum" and _broadcasts(label, operands, shapes)
        ):
            return decision
    return None


def _broadcasts(
    label: str, operands: list[list[str]], shapes: Sequence[tuple[Size, ...] | None]
) -> bool:
    """Return whether an operand has one row for all: an einsum takes it in batches of one alone."""
    pairs = zip(operands, shapes, strict=True)
    return any(
        label in labels and shape and shape[labels.index(label)] == 1 for labels, shape in pairs
    )


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


@rule("MatrixDeterminant", "LogMatrixDeterminant", inputs=ROWS)
def _determinant(node: Node, states: Sequence[State]) -> Decision | None:
    state, shape = states[0], node.inputs[0].shape
    if shape is None or not isinstance(state, Sharded) or state.axis >= len(shape) - 2:
        return None
    return Decision(inputs=(state,), outputs=(state,) * len(node.outputs))


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
