"""Keras optimizers on the devices of their variables: slots, updates, clipping, averages.

Under a strategy nothing changes: the strategy places the updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.pinning import colocation
from evener.pinning.colocation.wrapping import wrap_with


def install() -> None:
    """Let optimizers run on the devices of their variables. Safe to call again."""
    _tf_private.optimizers.UPDATES.apply(wrap_with(_apply))
    _tf_private.optimizers.SLOTS.apply(wrap_with(_slot))
    _tf_private.optimizers.SUMS.apply(wrap_with(_reduce))


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
