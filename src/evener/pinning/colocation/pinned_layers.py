"""The device that a Keras layer is pinned to, stored on the layer."""

from __future__ import annotations

from typing import Any

_DEVICE = "_evener_device"


def set_pinned_device(layer: Any, device: str) -> None:
    """Store the device that a layer is pinned to.

    Args:
        layer: A Keras layer.
        device: TensorFlow's name of the device, such as ``"/device:GPU:1"``.
    """
    # Keras's attribute tracking is bypassed: some layers refuse attributes once they are built.
    vars(layer)[_DEVICE] = device


def pinned_device(layer: Any) -> str:
    """Return TensorFlow's name of the device a layer is pinned to, or an empty string."""
    return vars(layer).get(_DEVICE, "")
