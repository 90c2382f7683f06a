"""Tensor lists, which loops keep the values of their rounds in."""

from __future__ import annotations

import tensorflow as tf

from evener.engine.trace.functional import LOOPS
from evener.graph.nodes import Tensor


def element_dtype(tensor: Tensor) -> tf.DType:
    """Return the dtype of the elements of a tensor list."""
    node = tensor.node
    if "element_dtype" in node.attrs:
        return tf.as_dtype(node.attrs["element_dtype"].type)
    if node.op in LOOPS:
        return element_dtype(node.inputs[tensor.index])
    for body in node.bodies.values():
        if len(body.outputs) > tensor.index and body.outputs[tensor.index].dtype == tf.variant:
            return element_dtype(body.outputs[tensor.index])
    return element_dtype(node.inputs[0])
