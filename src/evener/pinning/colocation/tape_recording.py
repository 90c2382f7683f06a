"""Tapes record the device that was requested for every forward operation.

A tape keeps only what the gradient of an operation needs: the inputs of a `MatMul`, the output
of a `Relu`, nothing of an `Identity`. None of these tells where the operation ran. So its device
is appended to the attributes that the tape keeps for it:

    MatMul  ("T", float32, ...)  -->  ("T", float32, ..., "_evener_device", "/device:GPU:1")

In a graph, Python records every operation and can append it. Eagerly, TensorFlow runs and records
an operation in one C++ call; while a tape records under a `tf.device`, that call is replaced by
TensorFlow's own slower path, which records in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.pinning.colocation.backward import run_on_device, with_device
from evener.pinning.colocation.device_lookup import device_of_operation, device_of_tensor
from evener.pinning.colocation.largest_input import eager_device


def record_gradient(
    original: Callable[..., Any], op_name: str, inputs: Any, attrs: Any, outputs: Any
) -> None:
    """Record an operation with its device among the attributes."""
    original(op_name, inputs, with_device(attrs, _requested_device(outputs)), outputs)


def record_operation(
    original: Callable[..., Any],
    op_type: str,
    output_tensors: Any,
    input_tensors: Any,
    backward_function: Callable[..., Any],
    *more: Any,
    **options: Any,
) -> None:
    """Record a call with its own gradient function: a `tf.function`, a `tf.custom_gradient`."""
    if op_type == "ReadVariableOp":
        # The gradients of all reads of a variable are summed on its device.
        device = device_of_tensor(input_tensors[0])
    else:
        device = _requested_device(output_tensors)
    backward = run_on_device(backward_function, device)
    original(op_type, output_tensors, input_tensors, backward, *more, **options)


def execute_fast(
    original: Callable[..., Any], context: Any, op_name: str, name: str | None, *arguments: Any
) -> Any:
    """Run an eager operation; on the slower path if a tape has to record its device."""
    if context.device_name is not None:
        if _tf_private.tapes.tape_is_recording():
            raise _tf_private.tapes.FallBack
        return original(context, op_name, name, *arguments)
    device = eager_device(arguments)
    if not device:
        return original(context, op_name, name, *arguments)
    with tf.device(device):
        return original(context, op_name, name, *arguments)


def _requested_device(outputs: Any) -> str:
    if tf.executing_eagerly():
        return _tf_private.devices.explicit_device()
    flat = outputs if isinstance(outputs, list | tuple) else [outputs]
    for value in flat:
        operation = value if isinstance(value, tf.Operation) else getattr(value, "op", None)
        if operation is not None:
            return device_of_operation(operation)
    return ""
