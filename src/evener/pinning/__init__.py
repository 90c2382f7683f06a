"""Pins: layers, models, functions and blocks on a device, with their gradients and updates.

    pins            evener.pin: layers, models, functions, blocks
    layers, losses, optimizers   what a pin changes in Keras
    variable_moves  variables of built layers that are pinned
    names, scope    device names, and `tf.device` with checks
    gradients       evener.pinned_gradients
    colocation/     gradients, sums and updates on the device of their tensor or variable

Importing this package does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evener.pinning.gradients import pinned_gradients
    from evener.pinning.pins import Pin, pin

_HOMES = {
    "Pin": "evener.pinning.pins",
    "pin": "evener.pinning.pins",
    "pinned_gradients": "evener.pinning.gradients",
}

__all__ = ["Pin", "pin", "pinned_gradients"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evener.pinning' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
