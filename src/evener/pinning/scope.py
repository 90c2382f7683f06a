"""`tf.device` for pinned work, with checks that the device is used."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.devices.names import device_name
from evener.errors import PlacementError
from evener.pinning.names import check_device_exists

_existing: set[str] = set()


def on_device(device: str) -> Any:
    """Return `tf.device` of an existing device.

    Args:
        device: TensorFlow's name of the device.

    Raises:
        PlacementError: PLACE-003 if it does not exist, PLACE-006 in a function that XLA compiles.
    """
    if device not in _existing:
        check_device_exists(device)
        _existing.add(device)
    if not tf.executing_eagerly() and _tf_private.devices.in_xla(tf.compat.v1.get_default_graph()):
        raise PlacementError(
            "PLACE-006",
            f"A layer or block is pinned to {device_name(device)} in a function that XLA compiles.",
            why="XLA compiles a function for one device, and ignores or rejects others inside.",
            fix="Remove jit_compile=True from this tf.function or from `compile`, or pin the whole "
            "compiled function from outside.",
        )
    return tf.device(device)
