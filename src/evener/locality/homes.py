"""The device that an operation, a tensor or a gradient has, as far as it has one.

An empty string means: nobody asked for a device. TensorFlow then chooses one, the same for an
operation and its gradient.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from evener import _tf_private

# Their variables may live on several devices, and what is inside of them has devices of its own.
_CALLS = frozenset(
    {
        "Case",
        "If",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "While",
        "XlaLaunch",
    }
)
# What stands in a graph for a tensor of the graph around it.
_CAPTURED = frozenset({"Const", "Placeholder"})


def on(device: str) -> contextlib.AbstractContextManager[Any]:
    """Return `tf.device(device)`; without a device, a context that changes nothing."""
    return tf.device(device) if device else contextlib.nullcontext()


def home_of_operation(operation: tf.Operation) -> str:
    """Return the device of an operation in a graph, or an empty string.

    An operation on a variable runs where the variable is, though it names no device. A function
    that XLA compiles has one device for all, which is not ours to name.
    """
    if operation.device:
        return _unless_xla(operation.graph, operation.device)
    if calls_functions(operation):
        return ""
    if operation.type == "Placeholder":
        # The sum of what a loop adds to a captured variable's gradient belongs beside it.
        return _unless_xla(operation.graph, home_of_tensor(operation.outputs[0]))
    for tensor in operation.inputs:
        if tensor.dtype == tf.resource:
            return _unless_xla(operation.graph, home_of_tensor(tensor))
    return ""


def calls_functions(operation: tf.Operation) -> bool:
    """Return whether an operation is a function, a branch or a loop."""
    return operation.type in _CALLS


def _unless_xla(graph: Any, home: str) -> str:
    return "" if home and _tf_private.in_xla(graph) else home


def home_of_tensor(tensor: Any) -> str:
    """Return the device of a tensor, or an empty string.

    A variable's value is where the variable is, though reading it names no device; a captured
    tensor is where it is in the outer graph.
    """
    if tensor.device:
        return tensor.device
    if tensor.op.type == "ReadVariableOp":
        return home_of_tensor(tensor.op.inputs[0])
    if tensor.op.type not in _CAPTURED:
        return ""
    outer = _tf_private.outer_tensor(tensor)
    # An eager tensor always has a device.
    return "" if outer is None else outer.device or home_of_tensor(outer)


def home_of_gradient(gradient: Any) -> str:
    """Return the device of a gradient, dense or in slices."""
    if isinstance(gradient, tf.IndexedSlices):
        gradient = gradient.values
    return home_of_tensor(gradient)
