"""Operations on the last axes of every row: spectra and decompositions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import behind, beside, last_axes
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.known import shape_of
from evener.ops.registry import Shapes, rule, shape_rule
from evener.ops.states import REPLICATED, State

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
