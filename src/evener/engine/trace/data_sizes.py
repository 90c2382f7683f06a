"""Tensors with sizes that nobody knows before the data is there."""

from __future__ import annotations

from collections.abc import Iterable

from evener.graph.dims import symbols_of
from evener.graph.nodes import Node, Tensor
from evener.ops.registry import Trait, has_trait


def sizes_of_data(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes that give tensors whose size depends on what is in the data.

    Args:
        nodes: Nodes in an order in which they can run.
    """
    found: set[Node] = set()
    for node in nodes:
        is_open = not all(map(_is_known, node.outputs))
        if has_trait(node, Trait.SIZED_BY_DATA) or (
            is_open and any(t.node in found for t in node.inputs)
        ):
            found.add(node)
    return found


def _is_known(tensor: Tensor) -> bool:
    """Return whether the batch alone decides about all sizes."""
    names = {name for size in tensor.shape or () for name in symbols_of(size)}
    return tensor.shape is not None and names <= {"B"}
