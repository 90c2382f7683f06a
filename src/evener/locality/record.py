"""Forward operations remember the device they were asked to run on.

A tape keeps of an operation only what its gradient needs: the inputs of a `MatMul`, the output
of a `Relu`, nothing of an `Identity`. None of that tells where it ran. So its device is put
among the attributes that the tape keeps for it:

    MatMul  ("T", float32, ...)  -->  ("T", float32, ..., "_evener_device", "/device:GPU:1")

In a graph, Python records every operation and can do so. Eagerly, TensorFlow runs and records
an operation in one call of C++ that Python does not see; while a tape records under a
`tf.device`, that call gives way to TensorFlow's own slower way, which records in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.locality.backward import on_its_device, with_device
from evener.locality.beside import eager_device
from evener.locality.homes import home_of_operation, home_of_tensor


def record_gradient(
    original: Callable[..., Any], op_name: str, inputs: Any, attrs: Any, outputs: Any
) -> None:
    """Record an operation with its device among the attributes."""
    original(op_name, inputs, with_device(attrs, _device_of(outputs)), outputs)


def record_operation(
    original: Callable[..., Any],
    op_type: str,
    output_tensors: Any,
    input_tensors: Any,
    backward_function: Callable[..., Any],
    *more: Any,
    **options: Any,
) -> None:
    """Record a call that brings its own gradient: a `tf.function`, a `tf.custom_gradient`."""
    if op_type == "ReadVariableOp":
        # Gradients of all that reads a variable are summed where the variable is.
        device = home_of_tensor(input_tensors[0])
    else:
        device = _device_of(output_tensors)
    backward = on_its_device(backward_function, device)
    original(op_type, output_tensors, input_tensors, backward, *more, **options)


def execute_fast(
    original: Callable[..., Any], context: Any, op_name: str, name: str | None, *arguments: Any
) -> Any:
    """Run an eager operation; if a tape has to know its device, in the slower way."""
    if context.device_name is not None:
        if _tf_private.tape_is_recording():
            raise _tf_private.FallBack
        return original(context, op_name, name, *arguments)
    device = eager_device(arguments)
    if not device:
        return original(context, op_name, name, *arguments)
    with tf.device(device):
        return original(context, op_name, name, *arguments)


def _device_of(outputs: Any) -> str:
    if tf.executing_eagerly():
        return _tf_private.explicit_device()
    flat = outputs if isinstance(outputs, list | tuple) else [outputs]
    for one in flat:
        operation = one if isinstance(one, tf.Operation) else getattr(one, "op", None)
        if operation is not None:
            return home_of_operation(operation)
    return ""
