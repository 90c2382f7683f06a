"""Gradients of operations, on the device that was requested for the forward operation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.pinning.colocation.deferred import DeferredGradient, backward_pass, materialized
from evener.pinning.colocation.device_lookup import (
    calls_functions,
    device_of_operation,
    device_of_tensor,
    device_scope,
)

_KEY = "_evener_device"


def with_device(attrs: Any, device: str) -> Any:
    """Return an operation's attributes, a flat tuple, with its requested device appended."""
    return (*(attrs or ()), _KEY, device) if device else attrs


def _split_device(attrs: Any) -> tuple[str, Any]:
    if attrs and len(attrs) >= 2 and attrs[-2] == _KEY:
        return attrs[-1], attrs[:-2]
    return "", attrs


@contextlib.contextmanager
def _backward_pass(is_running: bool) -> Iterator[None]:
    before, backward_pass.is_running = backward_pass.is_running, is_running
    try:
        yield
    finally:
        backward_pass.is_running = before


def run_on_device(gradient: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Return the gradient function of a recorded call, run on a device.

    Args:
        gradient: Takes a gradient for each output of the call, of its shape and dtype.
        device: TensorFlow's name of the device; empty for the current one.
    """

    def call(*output_gradients: Any) -> Any:
        with _backward_pass(False), device_scope(device):
            return gradient(*[materialized(given) for given in output_gradients])

    return call


def gradient_function(
    original: Callable[..., Any],
    op_name: str,
    attrs: Any,
    num_inputs: int,
    inputs: Any,
    outputs: Any,
    out_grads: Any,
    skip_input_indices: Any,
    forward_pass_name_scope: Any,
) -> Any:
    """Call the gradient function of an operation for a tape, on the device of the operation."""
    device, attrs = _split_device(attrs)
    with _backward_pass(False), device_scope(device):
        output_gradients = [materialized(gradient) for gradient in out_grads]
        return original(
            op_name,
            attrs,
            num_inputs,
            inputs,
            outputs,
            output_gradients,
            skip_input_indices,
            forward_pass_name_scope,
        )


def tape_gradient(
    original: Callable[..., Any],
    tape: Any,
    target: Any,
    sources: Sequence[Any],
    *args: Any,
    **kwargs: Any,
) -> list[Any]:
    """Run the backward pass of a tape; the gradient of a source is summed on its device.

    Returns:
        For each source a gradient of its shape and dtype, or None.
    """
    with _backward_pass(True):
        results = original(tape, target, sources, *args, **kwargs)
    return [_on_source_device(result, s) for result, s in zip(results, sources, strict=True)]


def _on_source_device(result: Any, source: Any) -> Any:
    if not isinstance(result, DeferredGradient):
        return result
    with device_scope(device_of_tensor(source)):
        return result.materialize()


@contextlib.contextmanager
def symbolic_gradient(
    original: Callable[..., Any], operation: tf.Operation, uid: Any, colocate: bool
) -> Iterator[None]:
    """Place the gradient of an operation in a graph: of functions, conditions and loops."""
    device = device_of_operation(operation)
    if not device and calls_functions(operation):
        # Colocation would override the devices of the operations inside.
        yield
        return
    with tf.device(device) if device else original(operation, uid, colocate):
        yield


def zeros_like(original: Callable[..., Any], tensor: Any, *more: Any) -> Any:
    """Return zeros of the shape and dtype of a tensor, on its device."""
    if tf.executing_eagerly() or not isinstance(tensor, tf.Tensor):
        return original(tensor, *more)
    device = device_of_tensor(tensor)
    with device_scope("" if device and _tf_private.devices.in_xla(tensor.graph) else device):
        return original(tensor, *more)
