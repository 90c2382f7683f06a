"""Axes of matrix products and their like, by labels as in an einsum."""

from __future__ import annotations

from evener.graph.nodes import Node

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
