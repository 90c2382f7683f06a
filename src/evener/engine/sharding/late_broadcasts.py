"""Elementwise work on tensors that were broadcast is done before they are broadcast.

The gradient of a mean over the batch is one number per channel, broadcast to the samples, divided
by their number, and multiplied. TensorFlow makes a tensor of the size of the samples of each::

    v ── BroadcastTo ── f(., s) ── g(., x)        v ── f(., s) ── g(., x)

    f: the other operand is small too             the result is broadcast, if it is still needed
    g: the other operand has all elements         it broadcasts the small operand itself

Every element of a result is computed of the same numbers as before. A sum of several tensors adds
the small ones last, so it may round otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evener._tf_private import graphs
from evener.graph.nodes import Graph, Node, Tensor
from evener.ops.axes import broadcast
from evener.ops.registry import EVERY_ELEMENT, FREE, Shape, Trait, has_trait

_BROADCASTS = ("BroadcastTo", "Tile")


def delay_broadcasts(graph: Graph) -> None:
    """Let elementwise operations of a step read small tensors in place of those broadcast of them.

    Args:
        graph: Step, with symbolic shapes; its nodes are changed.
    """
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.extend(_delayed(node))
        nodes.append(node)
    graph.nodes[:] = nodes


def _delayed(node: Node) -> Iterator[Node]:
    """Change a node that reads broadcast tensors; yield the nodes that it needs in addition."""
    # XLA broadcasts within the loop that reads the result.
    if node.xla or len(node.outputs) != 1 or not _is_inexact(node.outputs[0]):
        return
    found = [small for tensor in node.inputs if (small := _small(tensor)) is not None]
    if not found:
        return
    if node.op == "AddN":
        yield from _sum(node)
    elif has_trait(node, EVERY_ELEMENT) and not has_trait(node, FREE):
        yield from _elementwise(node)


def _elementwise(node: Node) -> Iterator[Node]:
    is_pair = has_trait(node, Trait.BROADCASTS)
    if len(node.inputs) != 1 + is_pair or not all(map(_is_inexact, node.inputs)):
        return
    inputs = [_small(tensor) or tensor for tensor in node.inputs]
    shape, whole = broadcast([tensor.shape for tensor in inputs]), node.outputs[0].shape
    if shape is None:
        return
    if shape == whole and is_pair:
        node.inputs = inputs
        return
    kind = next((t.node for t in node.inputs if _small(t) is not None and t.shape == whole), None)
    if kind is None or (kind.op == "Tile" and shape != kind.inputs[0].shape):
        return
    small = _made(node, "small", node.op, inputs, node.attrs, shape=shape)
    yield small
    node.op, node.inputs = kind.op, [small.outputs[0], kind.inputs[1]]
    node.attrs = {**kind.attrs, "T": graphs.AttrValue(type=_type_of(node))}


def _sum(node: Node) -> Iterator[Node]:
    """Add the tensors with all elements, the small ones, and both sums."""
    large = [tensor for tensor in node.inputs if _small(tensor) is None]
    small = [found for tensor in node.inputs if (found := _small(tensor)) is not None]
    shapes = [broadcast([tensor.shape for tensor in small[:k]]) for k in range(2, len(small) + 1)]
    if not large or None in shapes:
        return
    kind = {"T": graphs.AttrValue(type=_type_of(node))}
    total, least = large[0], small[0]
    if len(large) > 1:
        attrs = {**kind, "N": graphs.AttrValue(i=len(large))}
        added = _made(node, "large", "AddN", large, attrs, shape=total.shape)
        yield added
        total = added.outputs[0]
    for number, (tensor, shape) in enumerate(zip(small[1:], shapes, strict=True)):
        added = _made(node, f"small_{number}", "AddV2", [least, tensor], kind, shape=shape)
        yield added
        least = added.outputs[0]
    node.op, node.inputs, node.attrs = "AddV2", [total, least], kind


def _small(tensor: Tensor) -> Tensor | None:
    """Return what a tensor was broadcast of, if its sizes are 1 or those of the result for sure."""
    node = tensor.node
    if node.op not in _BROADCASTS or node.xla or tensor.shape is None:
        return None
    small = node.inputs[0]
    if small.shape is None or len(small.shape) > len(tensor.shape):
        return None
    pairs = zip(reversed(small.shape), reversed(tensor.shape), strict=False)
    is_certain = all(size in (1, whole) for size, whole in pairs)
    return small if is_certain else None


def _made(
    node: Node,
    name: str,
    op: str,
    inputs: Sequence[Tensor],
    attrs: Mapping[str, Any],
    *,
    shape: Shape | None,
) -> Node:
    sizes = None if shape is None else tuple(s if isinstance(s, int) else None for s in shape)
    made = Node(
        f"{node.name}/{name}",
        op,
        inputs,
        attrs,
        dtypes=[node.outputs[0].dtype],
        device=node.device,
        static_shapes=[sizes],
        source=node.source,
    )
    made.after = node.after
    made.outputs[0].shape = shape
    return made


def _type_of(node: Node) -> int:
    return node.outputs[0].dtype.as_datatype_enum


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex
