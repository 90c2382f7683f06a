"""The device of an operation, a tensor or a gradient, where the program requested one.

An empty string means that no device was requested. TensorFlow then chooses one, the same for an
operation and its gradient.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from evener import _tf_private

# Their variables may live on several devices, and the operations inside have their own devices.
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
# The operations that represent a tensor of the outer graph in a function's graph.
_CAPTURED = frozenset({"Const", "Placeholder"})


def device_scope(device: str) -> contextlib.AbstractContextManager[Any]:
    """Return `tf.device(device)`; for an empty string, a context that changes nothing."""
    return tf.device(device) if device else contextlib.nullcontext()


def device_of_operation(operation: tf.Operation) -> str:
    """Return the device of an operation in a graph, or an empty string.

    An operation on a variable runs on the device of the variable, even if it names no device. XLA
    compiles a function for a single device, so operations in such a function have none here.
    """
    if operation.device:
        return _unless_xla(operation.graph, operation.device)
    if calls_functions(operation):
        return ""
    if operation.type == "Placeholder":
        # The gradient of a captured variable in a loop is summed on the variable's device.
        return _unless_xla(operation.graph, device_of_tensor(operation.outputs[0]))
    for tensor in operation.inputs:
        if tensor.dtype == tf.resource:
            return _unless_xla(operation.graph, device_of_tensor(tensor))
    return ""


def calls_functions(operation: tf.Operation) -> bool:
    """Return whether an operation is a function call, a condition or a loop."""
    return operation.type in _CALLS


def _unless_xla(graph: Any, device: str) -> str:
    return "" if device and _tf_private.devices.in_xla(graph) else device


def device_of_tensor(tensor: Any) -> str:
    """Return the device of a tensor, or an empty string.

    The value of a variable is on the device of the variable, even if the read names no device. A
    captured tensor is on its device in the outer graph.

    Args:
        tensor: A tensor of any shape and dtype, eager or symbolic.
    """
    if tensor.device:
        return tensor.device
    if tensor.op.type == "ReadVariableOp":
        return device_of_tensor(tensor.op.inputs[0])
    if tensor.op.type not in _CAPTURED:
        return ""
    outer = _tf_private.graphs.outer_tensor(tensor)
    # An eager tensor always has a device.
    return "" if outer is None else outer.device or device_of_tensor(outer)


def device_of_gradient(gradient: Any) -> str:
    """Return the device of a gradient, or an empty string.

    Args:
        gradient: A `tf.Tensor` or `tf.IndexedSlices` of any shape and dtype.
    """
    if isinstance(gradient, tf.IndexedSlices):
        gradient = gradient.values
    return device_of_tensor(gradient)
