"""Losses and metrics that Keras computes, beside the predictions they are of.

Predictions of a pinned layer would move to the first device for it, and their gradient back.
The targets are moved instead, which are as large at most.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from evener.locality.homes import home_of_tensor, on

_lock = threading.Lock()


def install() -> None:
    """Let Keras compute losses where the predictions are. Safe to call again."""
    with _lock:
        if getattr(keras.Model, "_evener_losses_beside", False):
            return
        keras.Model._evener_losses_beside = True
        for name in ("compute_loss", "compute_metrics"):
            setattr(keras.Model, name, _beside_predictions(getattr(keras.Model, name)))


def _beside_predictions(original: Callable[..., Any]) -> Callable[..., Any]:
    # The order of arguments is that of Keras's documentation.
    @functools.wraps(original)
    def compute(
        self: Any,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        device = "" if tf.distribute.has_strategy() else _home_of_all(y_pred)
        with on(device):
            return original(self, x, y, y_pred, sample_weight, *args, **kwargs)

    return compute


def _home_of_all(predictions: Any) -> str:
    """Return the device that all predictions are on, or an empty string."""
    leaves = tf.nest.flatten(predictions)
    if not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
        return ""
    homes = {home_of_tensor(leaf) for leaf in leaves}
    return homes.pop() if len(homes) == 1 else ""
