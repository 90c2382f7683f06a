"""What kernels were seen to need on a device, as its allocator counts it.

Convolutions, the gradient of max-pooling and others allocate memory that no tensor of a graph
shows. Of a call whose results are still there::

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
"""What another call has left may be freed late: the median of several times counts."""


def measured_workspace(calls: Calls, arguments: Sequence[Any], device: str) -> int | None:
    """Return the bytes that calls need beside what they are given and hand over.

    What the allocator takes for a result may be more than the bytes of the result, and it is not
    counted: the difference of two of the allocator's own figures is taken. The peak that TensorFlow
    keeps of the device begins anew with it.

    Args:
        calls: What is called; their first call makes what all others share, and is not counted.
        arguments: For its arguments, in their order.
        device: TensorFlow's name of the device.

    Returns:
        None if the allocator of the device does not count.
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
    """Return the costs of a layer with the workspace that devices were seen to need.

    Args:
        costs: Of the layer.
        measured: Of every type of device; None where one does not tell.
    """
    curves = [one for one in measured if one is not None]
    if not curves:
        return costs
    places = sorted({samples for one in curves for samples, _ in one.points})
    most = tuple((samples, max(one(samples) for one in curves)) for samples in places)
    return dataclasses.replace(costs, kernel_workspace=Curve(most))
