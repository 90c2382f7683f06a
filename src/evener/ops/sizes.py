"""Sizes as tensors, and what is computed of them alone."""

from __future__ import annotations

from evener.graph.dims import Size, product
from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import broadcast, scalar
from evener.ops.known import numbers_of
from evener.ops.registry import FREE, Shapes, Trait, shape_rule, traits, value_rule


@value_rule("Shape", "ShapeN")
def _shape_value(table: SymbolTable, node: Node) -> Shapes:
    return [t.shape for t in node.inputs]


@value_rule("Size")
def _size_value(table: SymbolTable, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    return None if shape is None else [(product(shape),)]


@value_rule("Rank")
def _rank_value(table: SymbolTable, node: Node) -> Shapes:
    rank = node.inputs[0].rank
    return None if rank is None else [(rank,)]


@value_rule("BroadcastArgs")
def _broadcast_args(table: SymbolTable, node: Node) -> Shapes:
    return [broadcast([t.value for t in node.inputs])]


@value_rule("BroadcastGradientArgs")
def _broadcast_gradient_args(table: SymbolTable, node: Node) -> Shapes:
    """Over which axes the gradient of each operand is summed.

    An axis counts where an operand has size 1 and the other has not. Where both are the same
    symbol, neither was broadcast. Where the sizes cannot be compared, nothing is known.
    """
    a, b = (numbers_of(t) for t in node.inputs)
    rank = max(len(a), len(b))
    full_a = (None,) * (rank - len(a)) + a
    full_b = (None,) * (rank - len(b)) + b
    over_a: list[Size] = []
    over_b: list[Size] = []
    for axis, (left, right) in enumerate(zip(full_a, full_b, strict=True)):
        if left == right:
            if left == 1:
                over_a.append(axis)
                over_b.append(axis)
            continue
        if left in (None, 1):
            over_a.append(axis)
        elif right in (None, 1):
            over_b.append(axis)
        else:
            # 8 and B: B is 8, or it is 1 and its gradient is summed.
            return None
    return [tuple(over_a), tuple(over_b)]


@value_rule("InvertPermutation")
def _invert(table: SymbolTable, node: Node) -> Shapes:
    order = numbers_of(node.inputs[0])
    if not all(isinstance(k, int) for k in order):
        return None
    return [tuple(order.index(k) for k in range(len(order)))]


@value_rule("ListDiff")
def _list_difference(table: SymbolTable, node: Node) -> Shapes:
    """The numbers of the first list that are not in the second, and their indices."""
    numbers, without = (numbers_of(t) for t in node.inputs)
    if not all(isinstance(number, int) for number in (*numbers, *without)):
        return None
    kept = [index for index, number in enumerate(numbers) if number not in without]
    return [tuple(numbers[index] for index in kept), tuple(kept)]


shape_rule("Rank", "Size")(scalar)
traits("Shape ShapeN", FREE)
traits("ListDiff Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Where", Trait.SIZED_BY_DATA)
