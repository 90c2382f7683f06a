"""Keras's optimizers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from evener._tf_private.patches import Patch

_NAME = "_distribution_strategy"

UPDATES = Patch(
    "updates of variables",
    "keras:optimizers.Optimizer.apply",
    "keras:optimizers.LossScaleOptimizer.apply",
    why="An update runs on the device of its variable. Keras has no hook for it.",
    if_it_changes="Updates run on the first device.",
)
AUDITED_UPDATES = Patch(
    "updates of audited programs",
    "keras:optimizers.Optimizer.apply",
    why="An audit ends a program at its first eager step, which ends with an update.",
    if_it_changes="Audits of eager programs find no training step.",
)
SLOTS = Patch(
    "slots of variables",
    "keras:optimizers.Optimizer.add_variable_from_reference",
    why="A slot is made on the device of its variable. Keras has no hook for it.",
    if_it_changes="Slots are made on the first device.",
)
SUMS = Patch(
    "sums of gradients over replicas",
    "keras:optimizers.Optimizer._all_reduce_sum_gradients",
    why="It passes all gradients through one operation, even where there is nothing to reduce, and "
    "has no public name.",
    if_it_changes="All gradients go through the first device.",
)
_FOLLOWING = Patch(
    "strategies of optimizers",
    f"keras.src.backend.tensorflow.optimizer:TFOptimizer.{_NAME}",
    why="Keras fixes the strategy when an optimizer is made, and refuses to make its slots under "
    "another; on one device it does not matter where an optimizer is made.",
    if_it_changes='Such optimizers fail with TensorFlow\'s error "Mixing different strategies".',
    is_new=True,
)


def let_optimizers_follow(kind: type[tf.distribute.Strategy]) -> None:
    """Let optimizers that were made under no strategy work under strategies of this class."""
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

    _FOLLOWING.apply(lambda _: property(get, set_))
