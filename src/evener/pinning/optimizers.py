"""Keras optimizers on the devices of their variables: slots, updates, clipping, averages.

Under a strategy nothing changes: the strategy places the updates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.pinning import colocation
from evener.pinning.colocation.wrapping import wrap_with

_lock = threading.Lock()


def install() -> None:
    """Let optimizers run on the devices of their variables. Safe to call again."""
    with _lock:
        if getattr(keras.optimizers.Optimizer, "_evener_colocated_with_variables", False):
            return
        keras.optimizers.Optimizer._evener_colocated_with_variables = True
        _tf_private.optimizers.replace_optimizer_steps(
            apply=wrap_with(_apply), slot=wrap_with(_slot), reduce=wrap_with(_reduce)
        )


def _apply(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if tf.distribute.has_strategy() or _compiled_by_xla():
        return original(*args, **kwargs)
    with colocation.colocate_with_largest_input():
        return original(*args, **kwargs)


def _slot(
    original: Callable[..., Any],
    optimizer: Any,
    # Some optimizers pass it by this name.
    reference_variable: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if tf.distribute.has_strategy():
        return original(optimizer, reference_variable, *args, **kwargs)
    is_keras = isinstance(reference_variable, keras.Variable)
    variable = reference_variable.value if is_keras else reference_variable
    with tf.device(variable.device):
        return original(optimizer, reference_variable, *args, **kwargs)


def _reduce(original: Callable[..., Any], optimizer: Any, grads_and_vars: Any) -> Any:
    if tf.distribute.has_strategy():
        return original(optimizer, grads_and_vars)
    return list(grads_and_vars)


def _compiled_by_xla() -> bool:
    if tf.executing_eagerly():
        return False
    return _tf_private.devices.in_xla(tf.compat.v1.get_default_graph())
