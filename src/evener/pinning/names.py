"""Device names as programs write them, checked before anything is placed."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from evener.devices.names import device_name, tf_device
from evener.devices.tensorflow_view import runtime_initialised
from evener.errors import PlacementError, did_you_mean

_LOCAL = r"(?:/job:localhost/replica:0/task:0)?"
_NAME = re.compile(rf"{_LOCAL}/?(?:device:)?([A-Za-z_]+):(\d+)")


def tf_name(device: Any) -> str:
    """Return TensorFlow's name of a device: ``"/device:GPU:1"`` of ``"gpu:1"``.

    Args:
        device: ``"gpu:1"``, ``"GPU:1"``, ``"/GPU:1"``, ``"/device:GPU:1"``, or a
            `tf.config.LogicalDevice`.

    Raises:
        PlacementError: PLACE-001 if it is not a device name, PLACE-002 if it names a physical
            device, PLACE-003 if TensorFlow has started and there is no such device.
    """
    text = getattr(device, "name", device)
    if isinstance(text, str) and "physical_device" in text:
        raise _physical_device(text)
    match = _NAME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise PlacementError(
            "PLACE-001",
            f"{device!r} is not the name of one device.",
            why="A device name consists of a type and a number.",
            fix="Write for example 'gpu:1' or 'cpu:0', or give a tf.config.LogicalDevice.",
        )
    name = tf_device(f"{match[1]}:{int(match[2])}")
    if runtime_initialised(tf):
        check_device_exists(name)
    return name


def _physical_device(text: str) -> PlacementError:
    return PlacementError(
        "PLACE-002",
        f"{text!r} names a physical device; operations are placed on logical devices.",
        why="TensorFlow can split a physical device into several logical devices.",
        fix="Use the name of a logical device from tf.config.list_logical_devices(): "
        f"{device_name(text.replace('physical_device', 'device'))!r}.",
    )


def check_device_exists(name: str) -> None:
    """Raise for a device that does not exist; TensorFlow would silently use another one.

    Args:
        name: TensorFlow's name of the device. TensorFlow's runtime starts if it has not.

    Raises:
        PlacementError: PLACE-003.
    """
    existing = [device_name(device.name) for device in tf.config.list_logical_devices()]
    if device_name(name) not in existing:
        raise PlacementError(
            "PLACE-003",
            f"There is no device {device_name(name)!r}.{did_you_mean(device_name(name), existing)}",
            why=f"TensorFlow has {', '.join(existing)}.",
            fix="Use one of these. `evener devices` shows why a GPU is not among them.",
        )
