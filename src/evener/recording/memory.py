"""Memory in use on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The GPU memory that TensorFlow uses, now and at its peak, in bytes."""

    current_bytes: int
    peak_bytes: int


def gpu_memory(device: str) -> MemoryUse | None:
    """Return the memory in use on a GPU of this process; None for a CPU, and other workers'."""
    if not device.startswith("gpu:"):
        return None
    info: Mapping[str, int] = tf.config.experimental.get_memory_info(device.upper())
    return MemoryUse(current_bytes=info["current"], peak_bytes=info["peak"])
