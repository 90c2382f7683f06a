"""Matrix products, by the axis of the batch: a row of the result, or a sum over samples.

::

    x [B, m] @ w [m, n]       rows of x            -> rows of the result
    x^T [m, B] @ g [B, n]     sums over samples    -> partial sum
    x [B, m] @ y^T [m, B]     rows of x, all of y  -> rows of the result
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from evener.graph.counts import num_elements, sizes_of
from evener.graph.dims import Dim, Size
from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import broadcast
from evener.ops.decision import ROWS, Decision
from evener.ops.known import shape_of
from evener.ops.registry import (
    Shapes,
    Trait,
    equal_sizes_rule,
    flops_rule,
    rule,
    shape_rule,
    traits,
)
from evener.ops.states import REPLICATED, SUM, Sharded, State, is_shardable

PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})


def labels_of(node: Node) -> tuple[list[list[str]], list[str]] | None:
    """Return a label for every axis of the operands and of the result.

    Returns:
        The labels, as in an einsum; None for other operations, and where a rank is not known.
    """
    if node.op == "Einsum":
        left, right = node.text_attr("equation").split("->")
        if "." in left + right:
            return None
        return [list(labels) for labels in left.split(",")], list(right)
    if node.op not in PRODUCTS:
        return None
    ranks = [t.rank for t in node.inputs]
    if ranks[0] is None or ranks[1] is None:
        return None
    if node.op == "MatMul":
        turn = (node.bool_attr("transpose_a"), node.bool_attr("transpose_b"))
    else:
        turn = (node.bool_attr("adj_x"), node.bool_attr("adj_y"))
    rank = max(ranks[0], ranks[1])
    outer = [f"o{k}" for k in range(rank - 2)]
    first, second = ["m", "k"], ["k", "n"]
    a = outer[len(outer) - (ranks[0] - 2) :] + (first[::-1] if turn[0] else first)
    b = outer[len(outer) - (ranks[1] - 2) :] + (second[::-1] if turn[1] else second)
    return [a, b], [*outer, "m", "n"]


@shape_rule("MatMul", "SparseMatMul")
def _matmul_shape(table: SymbolTable, node: Node) -> Shapes:
    a, b = (shape_of(t) for t in node.inputs)
    rows = a[1] if node.bool_attr("transpose_a") else a[0]
    columns = b[0] if node.bool_attr("transpose_b") else b[1]
    return [(rows, columns)]


@shape_rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batch_matmul_shape(table: SymbolTable, node: Node) -> Shapes:
    a, b = (shape_of(t) for t in node.inputs)
    outer = broadcast([a[:-2], b[:-2]])
    if outer is None:
        return None
    rows = a[-1] if node.bool_attr("adj_x") else a[-2]
    columns = b[-2] if node.bool_attr("adj_y") else b[-1]
    return [(*outer, rows, columns)]


@shape_rule("Einsum")
def _einsum_shape(table: SymbolTable, node: Node) -> Shapes:
    left, right = node.text_attr("equation").split("->")
    if "." in left + right:
        return None
    sizes: dict[str, Size] = {}
    for labels, tensor in zip(left.split(","), node.inputs, strict=True):
        if tensor.shape is None or len(labels) != len(tensor.shape):
            return None
        for label, size in zip(labels, tensor.shape, strict=True):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    return [tuple(sizes[label] for label in right)]


@equal_sizes_rule(*PRODUCTS, "Einsum")
def _equalsizes_of(node: Node) -> Iterator[tuple[Size, Size]]:
    labels, sizes = labels_of(node), dict[str, Size]()
    for operand, tensor in zip(labels[0] if labels else (), node.inputs, strict=False):
        for label, size in zip(operand, tensor.shape or (), strict=False):
            if isinstance(size, Dim):
                yield sizes.setdefault(label, size), size


@rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", inputs=ROWS)
def _contraction(node: Node, states: Sequence[State]) -> Decision | None:
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


@flops_rule(*PRODUCTS)
def _matmul_flops(node: Node, num_samples: int) -> float:
    turned = node.bool_attr("transpose_a") or node.bool_attr("adj_x")
    inner = sizes_of(node.inputs[0], num_samples)[-2 if turned else -1]
    return 2 * inner * num_elements(node.outputs[0], num_samples)


@flops_rule("Einsum", "XlaEinsum")
def _einsum_flops(node: Node, num_samples: int) -> float:
    terms = node.text_attr("equation").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, node.inputs, strict=True):
        sizes.update(zip(term.replace("...", ""), sizes_of(tensor, num_samples), strict=False))
    return 2 * math.prod(sizes.values())


traits("Einsum MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3", Trait.COSTLY | Trait.OF_LAYERS)
traits("XlaEinsum", Trait.OF_LAYERS)
