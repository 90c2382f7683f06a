"""Losses and metrics of Keras on the device of the predictions.

Otherwise the predictions of a pinned layer would be copied to the first device, and their gradient
back. The targets are copied instead, which are at most as large.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener._tf_private.patches import Patch
from evener.pinning.colocation.device_lookup import device_of_tensor, device_scope

_LOSSES = Patch(
    "losses and metrics",
    "keras:Model.compute_loss",
    "keras:Model.compute_metrics",
    why="They run on the device of the predictions. Keras has no hook for it.",
    if_it_changes="Predictions of pinned layers are copied to the first device.",
)


def install() -> None:
    """Let Keras compute losses and metrics on the device of the predictions. Safe to call again."""
    _LOSSES.apply(_on_device_of_predictions)


def _on_device_of_predictions(original: Callable[..., Any]) -> Callable[..., Any]:
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
        device = "" if tf.distribute.has_strategy() else _common_device(y_pred)
        with device_scope(device):
            return original(self, x, y, y_pred, sample_weight, *args, **kwargs)

    return compute


def _common_device(predictions: Any) -> str:
    """Return the device of all predictions, or an empty string if they have several or none."""
    leaves = tf.nest.flatten(predictions)
    if not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
        return ""
    devices = {device_of_tensor(leaf) for leaf in leaves}
    return devices.pop() if len(devices) == 1 else ""
