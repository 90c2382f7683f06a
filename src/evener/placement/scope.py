"""The device around pinned work, refused where it could not be kept."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.errors import PlacementError
from evener.placement.names import check_is_there, short_name

_there: set[str] = set()


def on_device(device: str) -> Any:
    """Return `tf.device` of a device that is there.

    Args:
        device: As `tf_name` gives it.

    Raises:
        PlacementError: PLACE-003 if it is not there, PLACE-006 if XLA compiles what is around.
    """
    if device not in _there:
        check_is_there(device)
        _there.add(device)
    if not tf.executing_eagerly() and _tf_private.in_xla(tf.compat.v1.get_default_graph()):
        raise PlacementError(
            "PLACE-006",
            f"Something is pinned to {short_name(device)} in a function that XLA compiles.",
            why="XLA compiles a function for one device, and ignores or refuses others inside.",
            fix="Leave jit_compile=True out of this tf.function or of `compile`, or pin the "
            "whole compiled function from outside.",
        )
    return tf.device(device)
