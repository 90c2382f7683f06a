"""What kernels were seen to need on a device, as its allocator counts it.

Convolutions, the gradient of max-pooling and others allocate memory that no tensor of a graph
shows. Of a call that hands over its results::

    workspace = peak - before - results
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener.engine.costs.clock import Calls
from evener.profile import Curve, LayerCosts

_ROUNDS = 3
"""What another call has left may be freed late: the least of several times counts."""


def measured_workspace(calls: Calls, arguments: Sequence[Any], device: str) -> int | None:
    """Return the bytes that calls need beside what they are given and hand over.

    The peak that TensorFlow keeps of the device begins anew with it.

    Args:
        calls: What is called; their first call makes what all others share, and is not counted.
        arguments: For its arguments, in their order.
        device: TensorFlow's name of the device.

    Returns:
        None if the allocator of the device does not count.
    """
    _call(calls, arguments)
    found: list[int] = []
    for _ in range(_ROUNDS):
        try:
            tf.config.experimental.reset_memory_stats(device)
            before = tf.config.experimental.get_memory_info(device)["current"]
        except ValueError:
            return None
        handed_over = _call(calls, arguments)
        peak = tf.config.experimental.get_memory_info(device)["peak"]
        found.append(max(0, peak - before - handed_over))
    return min(found)


def _call(calls: Calls, arguments: Sequence[Any]) -> int:
    """Return the bytes of what calls hand over."""
    results = calls.loop(tf.constant(1), *arguments)
    tf.test.experimental.sync_devices()
    return sum(map(_num_bytes, results))


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


def _num_bytes(tensor: Any) -> int:
    if tensor.dtype in (tf.variant, tf.resource):
        return 0
    return math.prod(tensor.shape) * tensor.dtype.size
