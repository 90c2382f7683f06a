"""Workspace of kernels on a device, measured by its allocator.

Convolutions, the gradient of max-pooling and other kernels allocate memory that is no tensor of the
graph. While the results of a call are still alive::

    workspace = peak - after
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener.profile import Curve, LayerCosts
from evener.profiler.clock import Calls

_ROUNDS = 3
"""Number of measurements, of which the median counts: other calls may free memory late."""


def measured_workspace(calls: Calls, arguments: Sequence[Any], device: str) -> int | None:
    """Return the bytes that calls need besides their arguments and results.

    It is the difference of two figures of the allocator, so what the allocator rounds up for
    results is not counted. The measurement resets the peak that TensorFlow keeps of the device.

    Args:
        calls: Calls to measure; the first call, which traces, is not counted.
        arguments: Values of their arguments, in order.
        device: TensorFlow name of the device.

    Returns:
        The bytes; None if the allocator of the device has no statistics.
    """
    found: list[int] = []
    for _ in range(1 + _ROUNDS):
        try:
            tf.config.experimental.reset_memory_stats(device)
        except ValueError:
            return None
        results = calls.loop(tf.constant(1), *arguments)
        tf.test.experimental.sync_devices()
        info = tf.config.experimental.get_memory_info(device)
        found.append(info["peak"] - info["current"])
        del results
    return round(statistics.median(found[1:]))


def with_workspace(costs: LayerCosts, measured: Sequence[Curve | None]) -> LayerCosts:
    """Return the costs of a layer with the measured workspace of the devices.

    Args:
        costs: Costs of the layer.
        measured: Workspace curve of each type of device; None if it was not measured.
    """
    curves = [curve for curve in measured if curve is not None]
    if not curves:
        return costs
    sample_counts = sorted({samples for curve in curves for samples, _ in curve.points})
    most = tuple((samples, max(curve(samples) for curve in curves)) for samples in sample_counts)
    return dataclasses.replace(costs, kernel_workspace=Curve(most))
