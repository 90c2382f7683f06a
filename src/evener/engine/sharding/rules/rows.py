"""Operations on the last axes of every row: spectra, decompositions, equations, counts."""

from __future__ import annotations

from collections.abc import Sequence

from evener.engine.sharding.rules.elementwise import operand_state
from evener.engine.trace.per_row_shapes import INNER_AXES
from evener.graph.dims import Size
from evener.graph.nodes import Node
from evener.ops.decision import ROWS, WHOLE, Decision, rule
from evener.ops.states import (
    FIRST,
    REPLICATED,
    SUM,
    Partial,
    Sharded,
    State,
    is_shardable,
)

Shape = tuple[Size, ...]
WITH_LENGTH = "RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D".split()
ALONE = [op for op in INNER_AXES if op not in WITH_LENGTH]


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


@rule("Cross", inputs=ROWS)
def _cross(node: Node, states: Sequence[State]) -> Decision | None:
    state, shape = next((s for s in states if isinstance(s, Sharded)), None), node.inputs[0].shape
    if state is None or shape is None or state.axis == len(shape) - 1:
        return None
    if not all(is_shardable(tensor.shape, state) for tensor in node.inputs):
        return None
    return Decision(inputs=(state, state), outputs=(state,))


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


@rule("DenseBincount", inputs=(ROWS, WHOLE, ROWS))
def _counts(node: Node, states: Sequence[State]) -> Decision | None:
    """Counts of every row of a matrix; of a vector, terms of the counts of all samples."""
    values, weights = node.inputs[0], node.inputs[2]
    if values.rank is None or not (states[0] == FIRST or states[2] == FIRST):
        return None
    if not is_shardable(values.shape, FIRST):
        return None
    weighted: State = FIRST
    if weights.shape is not None and 0 in weights.shape:
        weighted = REPLICATED
    elif weights.shape != values.shape:
        return None
    if values.rank == 2:
        return Decision(inputs=(FIRST, REPLICATED, weighted), outputs=(FIRST,))
    state = Partial("max") if node.bool_attr("binary_output") else SUM
    return Decision(inputs=(FIRST, REPLICATED, weighted), outputs=(state,))


@rule("HistogramFixedWidth", inputs=(ROWS, WHOLE, WHOLE))
def _histogram(node: Node, states: Sequence[State]) -> Decision | None:
    if not isinstance(states[0], Sharded):
        return None
    return Decision(inputs=(states[0], REPLICATED, REPLICATED), outputs=(SUM,))


@rule("LowerBound", "UpperBound", inputs=ROWS)
def _search(node: Node, states: Sequence[State]) -> Decision | None:
    """Rows of both matrices belong together; of one row, values are looked up by themselves."""
    sorted_rows, values = states
    both = (t.shape for t in node.inputs)
    if Sharded(0) in states and all(is_shardable(shape, FIRST) for shape in both):
        return Decision(inputs=(FIRST, FIRST), outputs=(FIRST,))
    if isinstance(values, Sharded) and values.axis == 1 and not isinstance(sorted_rows, Sharded):
        return Decision(inputs=(REPLICATED, values), outputs=(values,))
    return None


@rule("TensorScatterAdd", "TensorScatterSub", inputs=(ROWS, WHOLE, ROWS))
@rule("TensorScatterUpdate", inputs=(ROWS, WHOLE, ROWS))
@rule("TensorScatterMax", "TensorScatterMin", inputs=(ROWS, WHOLE, ROWS))
def _scatter(node: Node, states: Sequence[State]) -> Decision | None:
    """Positions are along other axes than the samples, and the same for all of them."""
    shapes = [t.shape for t in node.inputs]
    if any(shape is None for shape in shapes):
        return None
    table, places, updates = (shape or () for shape in shapes)
    depth = places[-1] if places else None
    if not isinstance(depth, int):
        return None
    moved = len(places) - 1 - depth
    targets = [states[0]]
    if isinstance(states[2], Sharded):
        targets.append(states[2].at(states[2].axis - moved))
    for target in targets:
        if not isinstance(target, Sharded) or not depth <= target.axis < len(table):
            continue
        source = target.at(target.axis + moved)
        if is_shardable(updates, source) and updates[source.axis] == table[target.axis]:
            wanted = (target, REPLICATED, source)
            return Decision(inputs=wanted, outputs=(target,), needs_samples=True)
    return None


@rule("XlaDynamicUpdateSlice", inputs=(ROWS, ROWS, WHOLE))
def _update_slice(node: Node, states: Sequence[State]) -> Decision | None:
    """All samples get an update, at the same place of the other axes."""
    shape, update, begin = node.inputs[0].shape, node.inputs[1].shape, node.inputs[2].value
    state = next((s for s in states[:2] if isinstance(s, Sharded)), None)
    if state is None or shape is None or update is None or begin is None:
        return None
    if begin[state.axis] != 0 or shape[state.axis] != update[state.axis]:
        return None
    return Decision(inputs=(state, state, REPLICATED), outputs=(state,))
