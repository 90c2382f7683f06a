"""Tensors of all kinds, and reads of their values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import wrapt  # of TensorFlow
from tensorflow.python.framework import ops as framework_ops

from evener._tf_private.patches import Wrap

# Why: an argument of a step may be a sparse, ragged or other composite tensor, which is made of
# tensors, and there is no public name for the class.
# If it changes: `strategy.run` and `evener.distribute` take no such arguments.
CompositeTensor = tf.__internal__.CompositeTensor


def is_eager_tensor(value: Any) -> bool:
    """Return whether a value is a tensor outside of all graphs.

    Why: there is no public name for its class. If it changes: eager updates are computed on the
    first device.
    """
    return isinstance(value, framework_ops.EagerTensor)


@contextlib.contextmanager
def symbolic_lengths() -> Iterator[None]:
    """Let ``len(tensor)`` be the first size of a tensor in a graph, if that is known.

    Why: eager code asks for it; without AutoGraph, TensorFlow refuses it even for a known size.
    If it changes: steps with `len(batch)` are not hoisted, and run as they are written.
    """
    kind = tf.__internal__.SymbolicTensor
    original = kind.__len__

    def length(tensor: tf.Tensor) -> int:
        size = tensor.shape[0] if tensor.shape.rank else None
        return original(tensor) if size is None else size

    kind.__len__ = length
    try:
        yield
    finally:
        kind.__len__ = original


def unwrapped(value: Any) -> Any:
    """Return the container of Python in one of TensorFlow's wrappers around it, or the value.

    Why: `tf.Module` wraps dictionaries and tuples that are its attributes. If it changes: steps
    that use such an attribute are not hoisted.
    """
    return value.__wrapped__ if issubclass(type(value), wrapt.ObjectProxy) else value


def replace_host_reads(wrap: Wrap) -> None:
    """Replace the one function by which an eager tensor is brought to the host.

    Why: `numpy()`, `float()`, `bool()`, `print` and `np.array` all end there.
    If it changes: the doctor does not see what brings tensors to the host.
    """
    base: Any = framework_ops._EagerTensorBase
    base._numpy = wrap(base._numpy)
