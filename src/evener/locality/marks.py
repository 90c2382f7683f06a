"""Which device a layer is pinned to: a mark on the layer, for those who place its work."""

from __future__ import annotations

from typing import Any

_DEVICE = "_evener_device"


def mark(layer: Any, device: str) -> None:
    """Note that a layer is pinned to a device, by TensorFlow's name of it."""
    # Past Keras's attribute tracking, which some layers forbid once they are built.
    vars(layer)[_DEVICE] = device


def pinned_to(layer: Any) -> str:
    """Return TensorFlow's name of the device a layer is pinned to, or an empty string."""
    return vars(layer).get(_DEVICE, "")
