"""Variables that have a shape but no memory, so that a model can be traced that fits nowhere.

Tests: ``tests/unit/tf_compat/test_unallocated.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops


@contextlib.contextmanager
def unallocated_variables() -> Iterator[None]:
    """Let variables that are made here have no value, and take no memory.

    Functions that use them can be traced, but not run.

    Why: a traced step needs the shapes of its variables alone. TensorFlow makes such variables when
    it loads a saved model, and has no public way; Keras cannot train a model that is made in a
    `tf.Graph`, because it makes the slots of optimizers outside of it.
    If it changes: the costs of a model can be found only where the model fits into memory.
    """
    with tf.variable_creator_scope(_create):
        yield


def _create(_: Callable[..., Any], **arguments: Any) -> Any:
    shape, dtype = _kind_of(arguments["initial_value"], arguments.get("dtype"))
    return resource_variable_ops.UninitializedVariable(
        trainable=arguments.get("trainable"),
        shape=arguments.get("shape") or shape,
        dtype=dtype,
        name=arguments.get("name"),
    )


def _kind_of(initial: Any, dtype: Any) -> tuple[tf.TensorShape, tf.DType]:
    """Return shape and dtype of an initial value, which is not computed if it is a function."""
    if callable(initial):
        with contextlib.suppress(Exception), tf.Graph().as_default():
            value: Any = initial()
            made = tf.convert_to_tensor(value, dtype=dtype)
            if made.shape.is_fully_defined():
                return made.shape, made.dtype
        initial = initial()
    made = tf.convert_to_tensor(initial, dtype=dtype)
    return made.shape, made.dtype
