"""A batch out of the iterators that a step takes: what its sizes follow from."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener.placement.dry_run import Placed

_ARGUMENTS = ("_Arg", "_DeviceArg")
_PASS_ON = ("Identity", "Switch", "Enter")


def drawn_from(placed: Placed) -> dict[str, list[Any]]:
    """Draw from every iterator of a placed function, as its step would.

    The iterators lose what is drawn: only for a program that ends here.

    Returns:
        The tensors, by the names of the nodes that draw them; nothing for an iterator that
        has ended, or fails.
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
    """Return the node that a tensor comes from, past those that only pass it on."""
    node = nodes.get(tensor.partition(":")[0])
    while node is not None and node.op in _PASS_ON:
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
        # Its sizes stay unknown, which the audit says.
        return []
