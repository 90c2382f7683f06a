"""Blocks of space that become rows or channels, and back."""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.dims import Size, divide, has_batch, product
from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import batch_first, beside
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.known import numbers_of, shape_of, sharded
from evener.ops.registry import Shapes, rule, shape_rule
from evener.ops.states import REPLICATED, State, is_shardable
from evener.ops.values import matrix_of


@shape_rule("SpaceToBatchND", "BatchToSpaceND")
def _blocks_shape(table: SymbolTable, node: Node) -> Shapes:
    """Positions of every block become rows: ``block_row * B + sample``, or back."""
    shape, block = shape_of(node.inputs[0]), numbers_of(node.inputs[1])
    pads = matrix_of(node.inputs[2])
    if pads is None:
        return None
    space = shape[1 : len(block) + 1]
    sizes: list[Size] = []
    is_forward = node.op == "SpaceToBatchND"
    first = shape[0] * product(block) if is_forward else divide(shape[0], product(block))
    for size, factor, row in zip(space, block, pads, strict=True):
        edge = row[0] + row[1]
        found = divide(size + edge, factor) if is_forward else size * factor - edge
        if found is None:
            found = table.new_symbol(node.outputs[0], len(sizes) + 1)
        sizes.append(found)
    return None if first is None else [(first, *sizes, *shape[len(block) + 1 :])]


@rule("SpaceToBatchND", "BatchToSpaceND", inputs=(ROWS, WHOLE, WHOLE))
def _blocks(node: Node, states: Sequence[State]) -> Decision | None:
    """Positions of a block become blocks of the whole batch, one behind the other, or back."""
    state, block, result = sharded(states[0]), numbers_of(node.inputs[1]), shape_of(node.outputs[0])
    if state.axis != 0:
        return None
    count = product(block)
    if not isinstance(count, int) or not is_shardable(node.inputs[0].shape, state):
        return None
    outer: Size | None = state.outer * count
    if node.op == "BatchToSpaceND":
        outer = divide(state.outer, count)
    if outer is None or has_batch(outer) or not is_shardable(result, state.with_blocks(0, outer)):
        return None
    wanted = (state, REPLICATED, REPLICATED)
    return Decision(inputs=wanted, outputs=(state.with_blocks(0, outer),), needs_samples=True)


@rule("SpaceToDepth", "DepthToSpace", inputs=ROWS)
def _blocks_of_space(node: Node, states: Sequence[State]) -> Decision | None:
    return beside(node, states, (1, 2, 3))


shape_rule("SpaceToDepth", "DepthToSpace")(batch_first)
