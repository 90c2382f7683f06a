"""Seeds and generators of random numbers, and determinism."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import (
    config,
)
from tensorflow.python.ops import (
    stateful_random_ops,
)


def is_deterministic() -> bool:
    """Return whether `tf.config.experimental.enable_op_determinism` was called.

    Why: operations that read the clock fail then, and there is no public getter.
    If it changes: steps on several devices fail where it was called.
    """
    return config.is_op_determinism_enabled()


def operation_seeds() -> Any:
    """Return the state from which TensorFlow draws seeds for eager random operations.

    Why: there is no public getter, and an audit must not change what comes after it.
    If it changes: a program with an audit draws other random numbers than one without.
    """
    # Made at the first call of `tf.random.set_seed`.
    rng = getattr(eager_context.context(), "_rng", None)
    return None if rng is None else rng.getstate()


def set_operation_seeds(state: Any) -> None:
    """Put back what `operation_seeds` returned."""
    if state is not None:
        eager_context.context()._rng.setstate(state)


def draw_as_one_device(kind: type[tf.distribute.Strategy]) -> None:
    """Let generators that are made in the scope of a strategy of this kind draw as outside of it.

    Why: such a generator adds the number of its replica to its key, in a step, so that replicas
    draw other numbers. Here one replica stands for one device, which adds nothing.
    If it changes: numbers of such a generator are not those of the program without a strategy.
    """
    generator: Any = stateful_random_ops.Generator
    original = generator._preprocess_key
    if getattr(original, "_evener_kind", None) is kind:
        return

    @functools.wraps(original)
    def preprocess_key(self: Any, key: Any) -> Any:
        if isinstance(self._distribution_strategy, kind):
            return key
        return original(self, key)

    vars(preprocess_key).update(_evener_kind=kind)
    generator._preprocess_key = preprocess_key
