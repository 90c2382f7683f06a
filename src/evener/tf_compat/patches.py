"""All that stays changed in Keras once a strategy was made. Nothing changes for other strategies.

Tests: ``tests/unit/tf_compat/test_patches.py``.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from tensorflow.python.distribute import distribute_lib

_NAME = "_distribution_strategy"
PATCHES = {
    "keras.optimizers.Optimizer._distribution_strategy": "where its slots are made",
    "keras.Model._maybe_symbolic_build": "no batch is taken from the data to build the model",
    "keras.Model.jit_compile": "a step that runs on several devices is not compiled by XLA",
}
"""What is changed, by its name, and why."""


def patch_keras(kind: type[tf.distribute.Strategy]) -> None:
    """Let Keras treat strategies of a kind as one device. Safe to call again."""
    let_optimizers_follow(kind)
    leave_building_to_steps(kind)
    run_without_xla(kind)


def run_without_xla(kind: type[Any]) -> None:
    """Let steps of models of strategies of this kind be partitioned, and not compiled by XLA.

    Why: XLA compiles for one device. Keras asks the model when it makes its step.
    If it changes: models with ``jit_compile=True`` fail, because XLA finds their variables on
    several devices.

    Args:
        kind: Has a method ``runs_without_xla``, which tells whether it has several devices.
    """
    original: Any = inspect.getattr_static(keras.Model, "jit_compile")
    if getattr(original.fget, "_evener_kind", None) is kind:
        return

    @functools.wraps(original.fget)
    def get(model: Any) -> bool:
        is_wanted = original.fget(model)
        strategy = model._distribute_strategy
        if is_wanted and type(strategy) is kind:
            return not strategy.runs_without_xla()
        return is_wanted

    vars(get)["_evener_kind"] = kind
    keras.Model.jit_compile = property(get, original.fset, original.fdel, original.__doc__)


def leave_building_to_steps(kind: type[tf.distribute.Strategy]) -> None:
    """Let models of strategies of this kind be built by their first step, as on one device.

    Why: under a strategy Keras takes a batch from the data to build a model, so that the order
    of shuffled data is another one, and a generator loses its first batch.
    If it changes: data comes in another order than on one device.
    """
    original = keras.Model._maybe_symbolic_build
    if getattr(original, "_evener_kind", None) is kind:
        return

    @functools.wraps(original)
    def build(model: Any, *args: Any, **kwargs: Any) -> Any:
        if type(model._distribute_strategy) is kind:
            return None
        return original(model, *args, **kwargs)

    vars(build)["_evener_kind"] = kind
    keras.Model._maybe_symbolic_build = build


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
