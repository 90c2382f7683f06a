"""Rows in another order: reversed, rolled, sorted; results along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import beside, beside_last, leading, like_input, replicated
from evener.ops.decision import PARTIALS, ROWS, WHOLE, Decision
from evener.ops.joining import rearranged_partial
from evener.ops.known import first_sharded, integers_of, rank_of
from evener.ops.registry import Shapes, equal_sizes_rule, partial_rule, rule, shape_rule
from evener.ops.states import FIRST, REPLICATED, Sharded, State, is_first, is_shardable


@rule("ReverseV2", inputs=(ROWS, WHOLE))
@rule("Roll", inputs=(ROWS, WHOLE, WHOLE))
@rule("Cumsum", "Cumprod", "CumulativeLogsumexp", inputs=(ROWS, WHOLE))
def _along_axes(node: Node, states: Sequence[State]) -> Decision | None:
    rank = rank_of(node.inputs[0])
    return beside(node, states, [axis % rank for axis in integers_of(node.inputs[-1])])


@rule("ReverseSequence", inputs=ROWS)
def _reverse_sequence(node: Node, states: Sequence[State]) -> Decision | None:
    state = Sharded(node.int_attr("batch_dim"))
    if not is_shardable(node.inputs[0].shape, state) or node.int_attr("seq_dim") == state.axis:
        return None
    return Decision(inputs=(state, FIRST), outputs=(state,))


@shape_rule("TopKV2", "TopK")
def _top_k_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    count = node.inputs[1].value if node.op == "TopKV2" else (node.int_attr("k"),)
    if not shape or count is None:
        return None
    return [(*shape[:-1], *count)] * 2


@rule("InTopKV2", inputs=(ROWS, ROWS, WHOLE))
@rule("InTopK", inputs=ROWS)
def _in_top_k(node: Node, states: Sequence[State]) -> Decision | None:
    state = first_sharded([state for state in states[:2] if is_first(state)])
    return Decision(inputs=(state, state, *replicated(len(states) - 2)), outputs=(state,))


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


rule("TopKV2", inputs=(ROWS, WHOLE))(beside_last(1))
rule("TopK", inputs=ROWS)(beside_last(1))
shape_rule("Cumprod", "Cumsum", "CumulativeLogsumexp")(like_input(0))
shape_rule("Reverse", "ReverseSequence", "ReverseV2", "Roll")(like_input(0))
shape_rule("InTopK", "InTopKV2", "LowerBound", "UpperBound")(like_input(1))
partial_rule("ReverseV2", inputs=(PARTIALS, WHOLE))(rearranged_partial)
equal_sizes_rule("InTopK", "InTopKV2")(leading)
