"""Tensors whose rows are all the same, such as the ones that a gradient begins with.

They are rows of the batch in whatever order: of two batches that were joined, a part may have its
rows of both, or as many rows of the whole.
"""

from __future__ import annotations

from evener.graph.nodes import Node, Tensor
from evener.ops.axes import reduced_axes
from evener.ops.registry import EVERY_ELEMENT, Trait, has_trait

_MOST_TENSORS = 100
"""Number of tensors that an answer may depend on; beyond, it is not certain."""


def has_equal_rows(tensor: Tensor, axis: int) -> bool:
    """Return whether all rows along an axis are certain to be equal.

    Args:
        tensor: A tensor of known rank.
        axis: The axis.
    """
    return _Answers().of(tensor, axis)


class _Answers:
    """Answers for the tensors that a tensor is computed from; each is found once."""

    def __init__(self) -> None:
        self._found: dict[tuple[Tensor, int], bool] = {}

    def of(self, tensor: Tensor, axis: int) -> bool:
        """Return whether all rows along an axis are certain to be equal."""
        key = tensor, axis
        if key not in self._found:
            if len(self._found) >= _MOST_TENSORS:
                return False
            self._found[key] = False
            self._found[key] = self._find(tensor, axis)
        return self._found[key]

    def _find(self, tensor: Tensor, axis: int) -> bool:
        node, shape = tensor.node, tensor.shape
        if shape is None or not 0 <= axis < len(shape):
            return False
        if shape[axis] == 1 or has_trait(node, Trait.EQUAL_ELEMENTS):
            return True
        if has_trait(node, EVERY_ELEMENT):
            return all(self._is_stretched(operand, axis, node) for operand in _operands(node))
        if node.op in ("Reshape", "ExpandDims", "Squeeze"):
            # Axes behind it may be others.
            source = node.inputs[0]
            keeps_front = source.shape is not None and source.shape[: axis + 1] == shape[: axis + 1]
            return keeps_front and self.of(source, axis)
        if node.op in ("Sum", "Mean"):
            own = _axis_before(node, axis)
            return own is not None and self.of(node.inputs[0], own)
        return False

    def _is_stretched(self, operand: Tensor, axis: int, node: Node) -> bool:
        """Return whether an operand gives equal rows to a result, along an axis of the result."""
        result = node.outputs[0].shape
        if operand.shape is None or result is None:
            return False
        own = axis - (len(result) - len(operand.shape))
        if node.op == "Select" and len(operand.shape) == 1:
            own = axis  # The old select: its condition chooses rows from the front.
        return own < 0 or self.of(operand, own)


def _axis_before(node: Node, axis: int) -> int | None:
    """Return which axis of what a node reduces is an axis of the result."""
    shape = node.inputs[0].shape
    reduced = None if shape is None else reduced_axes(shape, node.inputs[1].value)
    if reduced is None or shape is None:
        return None
    if node.bool_attr("keep_dims"):
        return axis
    return [k for k in range(len(shape)) if k not in reduced][axis]


def _operands(node: Node) -> list[Tensor]:
    return node.inputs[:1] if node.op in ("Tile", "BroadcastTo") else node.inputs
