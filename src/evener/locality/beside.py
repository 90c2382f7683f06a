"""Operations on the device of their largest input, where nothing else is asked.

An optimizer clips, unscales, averages and accumulates without naming a device, and TensorFlow
would place all of that on the first one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.locality.homes import home_of_tensor

# A variable's handle outweighs every value: the update belongs beside the variable.
_HANDLE = 2**62


class _Here(threading.local):
    eagerly = False


_here = _Here()


@contextlib.contextmanager
def beside_inputs() -> Iterator[None]:
    """Place operations on the device of their largest input, where nothing else is asked."""
    if tf.executing_eagerly():
        before, _here.eagerly = _here.eagerly, True
        try:
            yield
        finally:
            _here.eagerly = before
        return
    # `tf.device` takes no function; its predecessor does, in graphs.
    with tf.compat.v1.device(_device_of_operation):
        yield


def eager_device(arguments: Iterable[Any]) -> str:
    """Return where an eager operation with these arguments belongs now, or an empty string."""
    if not _here.eagerly:
        return ""
    given = [one.handle if isinstance(one, tf.Variable) else one for one in _flat(arguments)]
    return _of_largest([one for one in given if _tf_private.is_eager_tensor(one)])


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    for one in arguments:
        if isinstance(one, list | tuple):
            yield from one
        else:
            yield one


def _device_of_operation(operation: tf.Operation) -> str:
    if operation.device:
        return operation.device  # Asked for by an inner `tf.device`, which is applied first.
    return _of_largest(operation.inputs)


def _of_largest(tensors: Iterable[Any]) -> str:
    best, device = -1, ""
    for tensor in tensors:
        home = home_of_tensor(tensor)
        if not home:
            continue
        size = _HANDLE if tensor.dtype == tf.resource else (tensor.shape.num_elements() or 0)
        if size > best:
            best, device = size, home
    return device
