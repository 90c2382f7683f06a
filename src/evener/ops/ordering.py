"""Rows in another order: reversed, rolled, sorted; results along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import is_number, leading, like_input
from evener.ops.decision import PARTIALS, ROWS, WHOLE, Decision
from evener.ops.joining import rearranged_partial
from evener.ops.registry import Shapes, equal_sizes_rule, gathered, partial_rule, rule, shape_rule
from evener.ops.states import FIRST, REPLICATED, Sharded, State, is_first, is_shardable


@rule("ReverseV2", inputs=(ROWS, WHOLE))
def _reverse(node: Node, states: Sequence[State]) -> Decision | None:
    axes, state, rank = node.inputs[1].value, states[0], node.inputs[0].rank
    if rank is None or axes is None or not isinstance(state, Sharded):
        return None
    if any(not isinstance(k, int) or k % rank == state.axis for k in axes):
        return None
    return Decision(inputs=(state, REPLICATED), outputs=(state,))


@rule("Roll", inputs=(ROWS, WHOLE, WHOLE))
def _roll(node: Node, states: Sequence[State]) -> Decision | None:
    axes, state, rank = node.inputs[2].value, states[0], node.inputs[0].rank
    if rank is None or axes is None or not isinstance(state, Sharded):
        return None
    if any(not isinstance(k, int) or k % rank == state.axis for k in axes):
        return None
    return Decision(inputs=(state, REPLICATED, REPLICATED), outputs=(state,))


@rule("ReverseSequence", inputs=ROWS)
def _reverse_sequence(node: Node, states: Sequence[State]) -> Decision | None:
    axis = node.int_attr("batch_dim")
    state = Sharded(axis)
    shape = node.inputs[0].shape
    if not is_shardable(shape, state) or node.int_attr("seq_dim") == axis:
        return None
    return Decision(inputs=(state, Sharded(0)), outputs=(state,))


@rule("Cumsum", "Cumprod", "CumulativeLogsumexp", inputs=(ROWS, WHOLE))
def _cumulative(node: Node, states: Sequence[State]) -> Decision | None:
    axes, state, rank = node.inputs[1].value, states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded) or not is_number(axes):
        return None
    assert axes is not None and isinstance(axes[0], int)
    if axes[0] % rank == state.axis:
        return None
    return Decision(inputs=(state, REPLICATED), outputs=(state,))


@shape_rule("TopKV2", "TopK")
def _top_k_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    count = node.inputs[1].value if node.op == "TopKV2" else (node.int_attr("k"),)
    if not shape or count is None:
        return None
    return [(*shape[:-1], *count)] * 2


@rule("TopKV2", inputs=(ROWS, WHOLE))
@rule("TopK", inputs=ROWS)
def _top_k(node: Node, states: Sequence[State]) -> Decision | None:
    state, rank = states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded) or state.axis == rank - 1:
        return None
    others = (REPLICATED,) * (len(states) - 1)
    return Decision(inputs=(state, *others), outputs=(state, state))


@rule("InTopKV2", inputs=(ROWS, ROWS, WHOLE))
@rule("InTopK", inputs=ROWS)
def _in_top_k(node: Node, states: Sequence[State]) -> Decision | None:
    state = next((s for s in states[:2] if is_first(s)), None)
    if not isinstance(state, Sharded):
        return None
    others = (REPLICATED,) * (len(states) - 2)
    return Decision(inputs=(state, state, *others), outputs=(state,))


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


shape_rule("Cumprod", "Cumsum", "CumulativeLogsumexp")(like_input(0))
shape_rule("Reverse", "ReverseSequence", "ReverseV2", "Roll")(like_input(0))
shape_rule("InTopK", "InTopKV2", "LowerBound", "UpperBound")(like_input(1))
partial_rule("ReverseV2", inputs=(PARTIALS, WHOLE))(rearranged_partial)
equal_sizes_rule("InTopK", "InTopKV2")(leading)
gathered("ApproxTopK", "It compares, sorts or permutes the samples of a batch.")
