"""Device names: TensorFlow's form and evener's short form."""

from __future__ import annotations

import functools

import tensorflow as tf

ASKED = "_evener_asked"
"""The attribute of an operation that holds the GPU it requests, such as ``"gpu:1"``."""


@functools.cache
def short_name(device: str) -> str | None:
    """Return evener's short form of a device name, or None if it names no device.

    >>> short_name("/job:localhost/replica:0/task:0/device:CPU:1"), short_name("/gpu:0")
    ('cpu:1', 'gpu:0')
    >>> short_name("/job:worker/task:2/device:GPU:0"), short_name("/job:worker/task:2")
    ('worker:2/gpu:0', None)
    """
    spec = tf.DeviceSpec.from_string(device)
    if not spec.device_type:
        return None
    name = f"{spec.device_type.lower()}:{spec.device_index or 0}"
    return name if spec.job in (None, "localhost") else f"{spec.job}:{spec.task or 0}/{name}"


def asked(operation: tf.Operation) -> str | None:
    """Return the device that an operation requests, or None if it requests none.

    Where a CPU device stands in for a GPU (`evener.launch.gpu_names`), it is that GPU.
    """
    return getattr(operation, ASKED, None) or short_name(operation.device)


def is_gpu(name: str) -> bool:
    """Return whether a short device name is that of a GPU.

    >>> is_gpu("gpu:0"), is_gpu("worker:1/gpu:0"), is_gpu("cpu:0")
    (True, True, False)
    """
    return name.rpartition("/")[2].startswith("gpu:")


def present() -> tuple[str, ...]:
    """Return the logical devices of TensorFlow, GPUs first."""
    names = {short_name(device.name) or "" for device in tf.config.list_logical_devices()}
    return tuple(sorted(names, key=lambda name: (not is_gpu(name), _number(name))))


def _number(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition(":")
    return kind, int(number or 0)
