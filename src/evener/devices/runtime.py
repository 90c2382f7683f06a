"""Configuration and start of TensorFlow's runtime on a layout of devices.

Visible GPUs, memory caps and growth, logical CPU devices and their threads. `use_devices` gets a
`Runtime`, so that tests need no GPU.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from evener.devices.layout import Layout
from evener.devices.tensorflow_view import TensorFlowView, read_tensorflow
from evener.errors import DeviceError

_MEBIBYTE = 2**20
_FORCE_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


class InitialiseError(Exception):
    """TensorFlow cannot start on a layout; it may start on another one."""


class Runtime(Protocol):
    """A runtime that can be configured and started, once."""

    fallback_layouts: dict[Layout, Layout]
    """For each layout on which starting failed, the layout that was started instead."""

    def view(self) -> TensorFlowView:
        """Return the current view of TensorFlow."""
        ...

    def configure(self, layout: Layout, *, memory_growth: bool) -> None:
        """Prepare a layout; may be called again until `initialise` succeeds."""
        ...

    def initialise(self) -> None:
        """Start the runtime, or raise `InitialiseError` and leave it not started."""
        ...


class TensorFlowRuntime:
    """Runtime of this process."""

    def __init__(self) -> None:
        self.fallback_layouts: dict[Layout, Layout] = {}

    def view(self) -> TensorFlowView:
        """Return the current view of TensorFlow."""
        return read_tensorflow()

    def configure(self, layout: Layout, *, memory_growth: bool) -> None:
        """Prepare a layout; may be called again until `initialise` succeeds."""
        import tensorflow as tf

        try:
            _show_gpus(tf, layout)
            _limit_memory(tf, layout, memory_growth=memory_growth)
            _split_cpu(tf, layout)
        except (ValueError, RuntimeError) as error:
            raise DeviceError(
                "DEV-014",
                f"TensorFlow cannot be configured for {layout}.",
                why=f"TensorFlow says: {error}",
                fix="remove other calls of tf.config from the program (memory growth, logical "
                "devices); evener.use_devices makes these settings.",
            ) from error

    def initialise(self) -> None:
        """Start the runtime, or raise `InitialiseError` and leave it not started."""
        import tensorflow as tf

        try:
            tf.config.list_logical_devices()
        except (RuntimeError, ValueError, tf.errors.OpError) as error:
            raise InitialiseError(str(error)) from error


def _show_gpus(tf: Any, layout: Layout) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    wanted = {request.index for request in layout.gpus}
    tf.config.set_visible_devices([gpus[index] for index in sorted(wanted)], "GPU")


def _limit_memory(tf: Any, layout: Layout, *, memory_growth: bool) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    capped = any(request.cap_bytes is not None for request in layout.gpus)
    for index in {request.index for request in layout.gpus}:
        caps = [r.cap_bytes for r in layout.gpus if r.index == index and r.cap_bytes is not None]
        if caps:
            logical = [
                tf.config.LogicalDeviceConfiguration(memory_limit=c // _MEBIBYTE) for c in caps
            ]
            tf.config.set_logical_device_configuration(gpus[index], logical)
        elif not capped:
            # It must be the same on all GPUs.
            tf.config.experimental.set_memory_growth(gpus[index], memory_growth)
    if capped and memory_growth:
        # If any GPU has a memory cap, TensorFlow disables memory growth on all of them. The
        # environment variable still works, and a value that is set already is kept.
        os.environ.setdefault(_FORCE_GROWTH, "true")


def _split_cpu(tf: Any, layout: Layout) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    made = len(tf.config.get_logical_device_configuration(cpu) or (None,))
    if made < layout.num_cpus:
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(layout.num_cpus)]
        tf.config.set_logical_device_configuration(cpu, logical)
    if not layout.limit_threads:
        return
    threading = tf.config.threading
    # 0 is TensorFlow's default: the program has chosen no number.
    if threading.get_intra_op_parallelism_threads() == 0:
        threading.set_intra_op_parallelism_threads(1)
    if threading.get_inter_op_parallelism_threads() == 0:
        threading.set_inter_op_parallelism_threads(max(2, layout.num_cpus))
