"""Gradients of operations, on the device that the operations were asked to run on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.locality.homes import calls_functions, home_of_operation, home_of_tensor, on
from evener.locality.later import Later, backward, taken

_KEY = "_evener_device"


def with_device(attrs: Any, device: str) -> Any:
    """Return an operation's attributes, a flat tuple, with the device that it was asked to."""
    return (*(attrs or ()), _KEY, device) if device else attrs


def _split_device(attrs: Any) -> tuple[str, Any]:
    if attrs and len(attrs) >= 2 and attrs[-2] == _KEY:
        return attrs[-1], attrs[:-2]
    return "", attrs


@contextlib.contextmanager
def _running(value: bool) -> Iterator[None]:
    before, backward.running = backward.running, value
    try:
        yield
    finally:
        backward.running = before


def on_its_device(gradient: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Return a recorded call's own gradient, as one that runs on a device."""

    def call(*output_gradients: Any) -> Any:
        with _running(False), on(device):
            return gradient(*[taken(one) for one in output_gradients])

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
    """Call the gradient of an operation for a tape, on the device of the operation."""
    device, attrs = _split_device(attrs)
    with _running(False), on(device):
        given = [taken(one) for one in out_grads]
        return original(
            op_name,
            attrs,
            num_inputs,
            inputs,
            outputs,
            given,
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
    """Run a tape backwards; sums for the sources are made where these live."""
    with _running(True):
        results = original(tape, target, sources, *args, **kwargs)
    return [_at_source(result, s) for result, s in zip(results, sources, strict=True)]


def _at_source(result: Any, source: Any) -> Any:
    if not isinstance(result, Later):
        return result
    with on(home_of_tensor(source)):
        return result.now()


@contextlib.contextmanager
def symbolic_gradient(
    original: Callable[..., Any], operation: tf.Operation, uid: Any, colocate: bool
) -> Iterator[None]:
    """Place the gradient of an operation in a graph: of functions, branches and loops."""
    device = home_of_operation(operation)
    if not device and calls_functions(operation):
        # What is inside has devices of its own, which colocation would outweigh.
        yield
        return
    with tf.device(device) if device else original(operation, uid, colocate):
        yield


def zeros_like(original: Callable[..., Any], tensor: Any, *more: Any) -> Any:
    """Make the zeros that stand for a gradient where the tensor is."""
    if tf.executing_eagerly() or not isinstance(tensor, tf.Tensor):
        return original(tensor, *more)
    home = home_of_tensor(tensor)
    with on("" if home and _tf_private.in_xla(tensor.graph) else home):
        return original(tensor, *more)
