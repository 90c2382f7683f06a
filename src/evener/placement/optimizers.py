"""Keras's optimizers beside the variables that they train: slots, updates, clipping, averages.

Under a strategy they are left alone: there, the strategy says where updates run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private, locality
from evener.locality.around import around

_lock = threading.Lock()


def install() -> None:
    """Let optimizers work where their variables are. Safe to call again."""
    with _lock:
        if getattr(keras.optimizers.Optimizer, "_evener_beside_variables", False):
            return
        keras.optimizers.Optimizer._evener_beside_variables = True
        _tf_private.replace_optimizer_steps(
            apply=around(_apply), slot=around(_slot), reduce=around(_reduce)
        )


def _apply(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if tf.distribute.has_strategy() or _compiled_by_xla():
        return original(*args, **kwargs)
    with locality.beside_inputs():
        return original(*args, **kwargs)


def _slot(
    original: Callable[..., Any],
    optimizer: Any,
    # Some optimizers give it by Keras's name for it.
    reference_variable: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if tf.distribute.has_strategy():
        return original(optimizer, reference_variable, *args, **kwargs)
    beside = reference_variable
    variable = beside.value if isinstance(beside, keras.Variable) else beside
    with tf.device(variable.device):
        return original(optimizer, beside, *args, **kwargs)


def _reduce(original: Callable[..., Any], optimizer: Any, grads_and_vars: Any) -> Any:
    if tf.distribute.has_strategy():
        return original(optimizer, grads_and_vars)
    return list(grads_and_vars)


def _compiled_by_xla() -> bool:
    if tf.executing_eagerly():
        return False
    return _tf_private.in_xla(tf.compat.v1.get_default_graph())
