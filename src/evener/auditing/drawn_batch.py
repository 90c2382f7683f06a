"""A batch from each iterator that a step takes: the sizes of its tensors follow from it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener.auditing.dry_run import Placed

_ARGUMENTS = ("_Arg", "_DeviceArg")
_FORWARDING = ("Identity", "Switch", "Enter")


def draw_batches(placed: Placed) -> dict[str, list[Any]]:
    """Draw a batch from every iterator of a placed function, as its step would.

    The iterators lose the batch, so the program must end after the audit.

    Returns:
        The tensors of each batch, in the shapes and dtypes of the dataset, by the name of the
        ``IteratorGetNext`` node. An iterator that is exhausted or fails is left out.
    """
    nodes = {node.name: node for node in placed.graph.node}
    drawn: dict[str, list[Any]] = {}
    for name, node in nodes.items():
        taken = _source(nodes, node.input[0]) if node.op == "IteratorGetNext" else None
        if taken is not None and taken.op in _ARGUMENTS:
            elements = _draw(node, placed.inputs[taken.attr["index"].i])
            if elements:
                drawn[name] = elements
    return drawn


def _source(nodes: dict[str, Any], tensor: str) -> Any | None:
    """Return the node that produces a tensor; nodes that only forward it are skipped."""
    node = nodes.get(tensor.partition(":")[0])
    while node is not None and node.op in _FORWARDING:
        node = nodes.get(node.input[0].partition(":")[0])
    return node


def _draw(node: Any, iterator: Any) -> list[Any]:
    try:
        return tf.raw_ops.IteratorGetNext(
            iterator=iterator,
            output_types=[tf.dtypes.as_dtype(t) for t in node.attr["output_types"].list.type],
            output_shapes=[tf.TensorShape(s) for s in node.attr["output_shapes"].list.shape],
        )
    except tf.errors.OpError:
        # The audit reports unknown sizes.
        return []
