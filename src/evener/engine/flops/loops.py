"""Loops: how often they run, and what lists of tensors they fill for their gradients."""

from __future__ import annotations

from evener.engine.trace.functional import LOOPS
from evener.graph.constants import constant_array
from evener.graph.nodes import Node, Tensor

_ELEMENT = {"TensorListPushBack": 1, "TensorListSetItem": 2}
"""Which input of an operation it puts into a list."""


def num_iterations(node: Node) -> int:
    """Return how often a loop runs at most, as its second argument says; 1 if that is not known."""
    limit = node.inputs[1] if len(node.inputs) > 1 else None
    if limit is None or not limit.dtype.is_integer or limit.rank != 0:
        return 1
    found = constant_array(limit)
    value = (int(found.item()),) if found is not None else limit.value
    return max(1, value[0]) if value and isinstance(value[0], int) else 1


def listed(tensor: Tensor) -> tuple[Tensor, int] | None:
    """Return a tensor of which a list holds several, and how many; None if that is not known."""
    node = tensor.node
    if node.op == "TensorListFromTensor":
        return node.inputs[0], 1
    if node.op not in LOOPS or "body" not in node.bodies:
        return None
    made = node.bodies["body"].outputs[tensor.index].node
    while made.op == "Identity":
        made = made.inputs[0].node
    if made.op not in _ELEMENT:
        return None
    return made.inputs[_ELEMENT[made.op]], num_iterations(node)
