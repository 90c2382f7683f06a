"""Estimated times of layers that cannot be called alone, from their operations and bytes.

The time of an operation is the longer of two: its arithmetic at the speed of the device, and the
bytes that it reads and writes at the memory bandwidth, plus the launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from evener.engine.flops.flops import node_flops
from evener.engine.flops.sizes import num_bytes
from evener.engine.partition.tasks import Task
from evener.graph.nodes import Node
from evener.profile import Curve, LayerTimes
from evener.profiler.device_speed import DeviceSpeed
from evener.profiler.split import LayerTasks


def estimated_times(
    tasks: LayerTasks, speed: DeviceSpeed, batch_sizes: Sequence[int]
) -> LayerTimes:
    """Return the estimated times of a layer on a device.

    Args:
        tasks: Tasks of the layer.
        speed: Speed of the device.
        batch_sizes: Numbers of samples of the points of the curves.
    """
    sizes = sorted(set(batch_sizes))

    def curve(some: Sequence[Task]) -> Curve:
        nodes = [node for task in some for node in task.nodes]
        return Curve(tuple((size, _seconds(nodes, speed, size)) for size in sizes))

    return LayerTimes(
        forward=curve(tasks.forward),
        backward=curve(tasks.backward),
        update_seconds=curve(tasks.once).points[0][1],
    )


def _seconds(nodes: Iterable[Node], speed: DeviceSpeed, num_samples: int) -> float:
    total = 0.0
    for node in nodes:
        tensors = [t for t in (*node.inputs, *node.outputs) if not t.is_sizes]
        moved = sum(num_bytes(tensor, num_samples) for tensor in tensors)
        dtype = next((t.dtype for t in node.outputs if t.dtype.is_floating), tf.float32)
        flops = node_flops(node, num_samples)
        computing = flops / speed.flops_per_second(dtype.name)
        total += speed.launch_seconds + max(computing, moved / speed.bytes_per_second)
    return total
