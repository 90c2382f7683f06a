"""Names of devices as people write them, checked before anything is placed."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

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
        PlacementError: PLACE-001 if it is no name of a device, PLACE-002 if it is one of
            hardware, PLACE-003 if TensorFlow has started and there is no such device.
    """
    text = getattr(device, "name", device)
    if isinstance(text, str) and "physical_device" in text:
        raise _hardware(text)
    match = _NAME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise PlacementError(
            "PLACE-001",
            f"{device!r} is not the name of one device.",
            why="A device has a kind and a number.",
            fix="Write for example 'gpu:1' or 'cpu:0', or give a tf.config.LogicalDevice.",
        )
    name = f"/device:{match[1].upper()}:{int(match[2])}"
    if runtime_initialised(tf):
        check_is_there(name)
    return name


def _hardware(text: str) -> PlacementError:
    return PlacementError(
        "PLACE-002",
        f"{text!r} is a piece of hardware, and nothing can be placed on it by that name.",
        why="TensorFlow places work on logical devices, of which one piece of hardware may have "
        "several.",
        fix="Use the name of a logical device, as tf.config.list_logical_devices() gives it: "
        f"{short_name(text.replace('physical_device', 'device'))!r}.",
    )


def check_is_there(name: str) -> None:
    """Refuse a device that does not exist; TensorFlow would use another without a word.

    Args:
        name: As `tf_name` gives it. TensorFlow's runtime starts, if it has not.

    Raises:
        PlacementError: PLACE-003.
    """
    there = [short_name(device.name) for device in tf.config.list_logical_devices()]
    if short_name(name) not in there:
        raise PlacementError(
            "PLACE-003",
            f"There is no device {short_name(name)!r}.{did_you_mean(short_name(name), there)}",
            why=f"TensorFlow has {', '.join(there)}.",
            fix="Use one of these. `evener devices` tells why a GPU is not among them.",
        )


def short_name(name: str) -> str:
    """Return evener's name of a device: ``"gpu:1"`` of ``"/device:GPU:1"``."""
    kind, number = name.rsplit(":", 2)[-2:]
    return f"{kind.rsplit('/', 1)[-1].lower()}:{number}"
