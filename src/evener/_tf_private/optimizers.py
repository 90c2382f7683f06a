"""Keras's optimizers."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from tensorflow.python.distribute import distribute_lib

from evener._tf_private.patches import Wrap


def replace_optimizer_steps(*, apply: Wrap, slot: Wrap, reduce: Wrap) -> None:
    """Replace parts of Keras's optimizers.

    Args:
        apply: Wraps ``apply`` of both kinds of optimizers.
        slot: Wraps ``add_variable_from_reference``.
        reduce: Wraps ``_all_reduce_sum_gradients``, which passes all gradients through one
            operation, even where there is nothing to reduce.

    Why: the last has no public name. If it changes: all gradients go through the first device.
    """
    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        kind.apply = apply(kind.apply)
    kind = keras.optimizers.Optimizer
    kind.add_variable_from_reference = slot(kind.add_variable_from_reference)
    kind._all_reduce_sum_gradients = reduce(kind._all_reduce_sum_gradients)


_NAME = "_distribution_strategy"


def let_optimizers_follow(kind: type[tf.distribute.Strategy]) -> None:
    """Let optimizers that were made under no strategy work under one of this kind.

    Safe to call again. Elsewhere nothing changes.

    Why: Keras fixes the strategy when an optimizer is made, and refuses to make its slots under
    another; on one device it does not matter where an optimizer is made.
    If it changes: such optimizers fail with TensorFlow's error "Mixing different strategies".
    """
    if isinstance(vars(TFOptimizer).get(_NAME), property):
        return

    default = distribute_lib._get_default_strategy()

    def get(optimizer: Any) -> Any:
        if _NAME not in vars(optimizer):
            raise AttributeError(_NAME)  # it is being made
        made_under = vars(optimizer)[_NAME]
        now = tf.distribute.get_strategy()
        is_free = made_under is default
        return now if is_free and isinstance(now, kind) else made_under

    def set_(optimizer: Any, strategy: Any) -> None:
        vars(optimizer)[_NAME] = strategy

    setattr(TFOptimizer, _NAME, property(get, set_))
