"""Devices of an audit: those that exist, and those that operations request."""

from __future__ import annotations

import tensorflow as tf

from evener.devices.names import qualified_name

ASKED = "_evener_asked"
"""The attribute of an operation that holds the GPU it requests, such as ``"gpu:1"``."""


def requested(operation: tf.Operation) -> str | None:
    """Return the device that an operation requests, or None if it requests none.

    For a stand-in device (`evener.run.gpu_names`), that is the GPU it stands in for.
    """
    return getattr(operation, ASKED, None) or qualified_name(operation.device)


def is_gpu(name: str) -> bool:
    """Return whether a name is that of a GPU, on any machine.

    >>> is_gpu("gpu:0"), is_gpu("worker:1/gpu:0"), is_gpu("cpu:0")
    (True, True, False)
    """
    return name.rpartition("/")[2].startswith("gpu:")


def present() -> tuple[str, ...]:
    """Return the logical devices of TensorFlow, GPUs first."""
    names = {qualified_name(device.name) or "" for device in tf.config.list_logical_devices()}
    return tuple(sorted(names, key=lambda name: (not is_gpu(name), _number(name))))


def _number(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition(":")
    return kind, int(number or 0)
