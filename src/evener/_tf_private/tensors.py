"""Tensors of all kinds, and reads of their values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import wrapt  # of TensorFlow
from tensorflow.python.framework import ops as framework_ops

from evener._tf_private.patches import Patch

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


_LENGTHS = Patch(
    "lengths of symbolic tensors",
    "tensorflow:__internal__.SymbolicTensor.__len__",
    why="Eager code asks for it; without AutoGraph, TensorFlow refuses it even for a known size.",
    if_it_changes="Steps with `len(batch)` are not hoisted, and run as they are written.",
)
HOST_READS = Patch(
    "reads of tensors on the host",
    "tensorflow.python.framework.ops:_EagerTensorBase._numpy",
    why="`numpy()`, `float()`, `bool()`, `print` and `np.array` all end there.",
    if_it_changes="The doctor does not see what brings tensors to the host.",
)


def symbolic_lengths() -> contextlib.AbstractContextManager[None]:
    """Let ``len(tensor)`` be the first size of a tensor in a graph, if that is known."""
    return _LENGTHS.applied(_known_length)


def _known_length(original: Callable[[Any], int]) -> Callable[[Any], int]:
    def length(tensor: tf.Tensor) -> int:
        size = tensor.shape[0] if tensor.shape.rank else None
        return original(tensor) if size is None else size

    return length


def unwrapped(value: Any) -> Any:
    """Return the container of Python in one of TensorFlow's wrappers around it, or the value.

    Why: `tf.Module` wraps dictionaries and tuples that are its attributes. If it changes: steps
    that use such an attribute are not hoisted.
    """
    return value.__wrapped__ if issubclass(type(value), wrapt.ObjectProxy) else value
