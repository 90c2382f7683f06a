"""Operations on the last axes of every row: spectra and decompositions."""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import behind
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.registry import Shape, Shapes, rule, shape_rule
from evener.ops.states import REPLICATED, Sharded, State

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
    shape, inner = node.inputs[0].shape, INNER_AXES[node.op]
    if shape is None or len(shape) < inner:
        return None
    return [behind(table, tensor, shape[: len(shape) - inner]) for tensor in node.outputs]


@rule(*ALONE, inputs=ROWS)
@rule(*WITH_LENGTH, inputs=(ROWS, WHOLE))
def _per_row(node: Node, states: Sequence[State]) -> Decision | None:
    """Axes in front of those that the operation works on."""
    state, shape = states[0], node.inputs[0].shape
    if shape is None or not isinstance(state, Sharded):
        return None
    if state.axis >= len(shape) - INNER_AXES[node.op]:
        return None
    outputs = tuple(_state_of(tensor.shape, state) for tensor in node.outputs)
    return Decision(inputs=(state, *states[1:]), outputs=outputs)


def _state_of(shape: Shape | None, state: Sharded) -> State:
    """Vectors that were not asked for are empty, whatever the rows."""
    return REPLICATED if shape == (0,) else state
