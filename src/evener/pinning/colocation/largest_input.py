"""Operations on the device of their largest input, where no device is requested.

An optimizer clips, unscales, averages and accumulates without naming a device, and TensorFlow
would place all of these operations on the first one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.pinning.colocation.device_lookup import device_of_tensor

# A variable's handle outweighs every value: the update runs on the device of the variable.
_HANDLE_SIZE = 2**62


class _State(threading.local):
    # Whether eager operations are placed.
    is_colocating = False
    # Whether a step is traced of which another one places the operations.
    is_paused = False


_state = _State()


@contextlib.contextmanager
def colocate_with_largest_input() -> Iterator[None]:
    """Place operations on the device of their largest input, where no device is requested."""
    if _state.is_paused:
        yield
        return
    if tf.executing_eagerly():
        before, _state.is_colocating = _state.is_colocating, True
        try:
            yield
        finally:
            _state.is_colocating = before
        return
    # `tf.device` takes no function; its predecessor does, in graphs.
    with tf.compat.v1.device(_device_for_operation):
        yield


@contextlib.contextmanager
def no_colocation() -> Iterator[None]:
    """Let `colocate_with_largest_input` do nothing in this thread.

    Where variables lie says nothing of where the operations of a partitioned step belong.
    """
    before, _state.is_paused = _state.is_paused, True
    try:
        yield
    finally:
        _state.is_paused = before


def eager_device(arguments: Iterable[Any]) -> str:
    """Return the device for an eager operation in this context, or an empty string.

    Args:
        arguments: Inputs and attributes of the operation: tensors and variables of any shape and
            dtype, lists of them, and other values.
    """
    if not _state.is_colocating:
        return ""
    values = [
        argument.handle if isinstance(argument, tf.Variable) else argument
        for argument in _flat(arguments)
    ]
    return _device_of_largest(
        [value for value in values if _tf_private.tensors.is_eager_tensor(value)]
    )


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    for argument in arguments:
        if isinstance(argument, list | tuple):
            yield from argument
        else:
            yield argument


def _device_for_operation(operation: tf.Operation) -> str:
    if operation.device:
        return operation.device  # Requested by an inner `tf.device`, which is applied first.
    return _device_of_largest(operation.inputs)


def _device_of_largest(tensors: Iterable[Any]) -> str:
    largest, result = -1, ""
    for tensor in tensors:
        device = device_of_tensor(tensor)
        if not device:
            continue
        size = _HANDLE_SIZE if tensor.dtype == tf.resource else (tensor.shape.num_elements() or 0)
        if size > largest:
            largest, result = size, device
    return result
