"""Estimated times of layers that cannot be called alone, from their operations and bytes.

The time of an operation is the longer of two: its arithmetic at the speed of the device, and the
bytes that it reads and writes at the memory bandwidth, plus the launch. Operations that only rename
a tensor or its shape have no kernel and take no time; of a loop, the operations of its body are
counted for every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from evener.engine.flops.flops import node_flops
from evener.engine.flops.loops import num_iterations
from evener.engine.flops.sizes import num_bytes
from evener.engine.partition.tasks import Task
from evener.engine.trace.functional import LOOPS
from evener.graph.nodes import Node
from evener.profile import Curve, LayerTimes
from evener.profiler.device_speed import DeviceSpeed
from evener.profiler.split import LayerTasks

_WITHOUT_KERNEL = frozenset(
    {
        *("Const", "Identity", "IdentityN", "NoOp", "PreventGradient", "ReadVariableOp"),
        *("Reshape", "Shape", "ShapeN", "Size", "Rank", "Squeeze", "ExpandDims", "StopGradient"),
        *("BroadcastGradientArgs", "EnsureShape", "VarIsInitializedOp", "VarHandleOp"),
    }
)


def estimated_times(
    tasks: LayerTasks, speed: DeviceSpeed, batch_sizes: Sequence[int]
) -> LayerTimes:
    """Return the estimated times of a layer on a device.

    Args:
        tasks: Tasks of the layer.
        speed: Speed of the device.
        batch_sizes: Numbers of samples of the points of the curves.
    """

    def seconds(task: Task, num_samples: int) -> float:
        return seconds_of_nodes(task.nodes, speed, num_samples)

    return times_of(tasks, seconds, batch_sizes)


def times_of(
    tasks: LayerTasks, seconds: Callable[[Task, int], float], batch_sizes: Sequence[int]
) -> LayerTimes:
    """Return the times of a layer by the seconds of its tasks.

    Args:
        tasks: Tasks of the layer.
        seconds: Function of a task and a number of samples.
        batch_sizes: Numbers of samples of the points of the curves.
    """
    sizes = sorted(set(batch_sizes))

    def curve(some: Sequence[Task]) -> Curve:
        return Curve(tuple((size, sum(seconds(task, size) for task in some)) for size in sizes))

    return LayerTimes(
        forward=curve(tasks.forward),
        backward=curve(tasks.backward),
        update_seconds=curve(tasks.once).points[0][1],
    )


def seconds_of_nodes(nodes: Iterable[Node], speed: DeviceSpeed, num_samples: int) -> float:
    """Return the seconds of operations, each of which is a kernel of its own."""
    kernels = (node for node in nodes if not has_no_kernel(node))
    return sum(kernel_seconds(node, speed, num_samples) for node in kernels)


def kernel_seconds(node: Node, speed: DeviceSpeed, num_samples: int) -> float:
    """Return the seconds of an operation, or of all iterations of a loop."""
    if node.op in LOOPS and "body" in node.bodies:
        body = seconds_of_nodes(node.bodies["body"], speed, num_samples)
        return num_iterations(node) * body
    computing = node_flops(node, num_samples) / speed.flops_per_second(_dtype_name(node))
    moving = _moved_bytes(node, num_samples) / speed.bytes_per_second
    return speed.launch_seconds + max(computing, moving)


def _moved_bytes(node: Node, num_samples: int) -> int:
    """Return the bytes that a kernel reads and writes; of a list of tensors, its elements do."""
    tensors = [t for t in (*node.inputs, *node.outputs) if not t.is_sizes]
    return sum(num_bytes(t, num_samples) for t in tensors if t.dtype != tf.variant)


def has_no_kernel(node: Node) -> bool:
    """Return whether a node only renames a tensor, or computes with sizes, as the host does."""
    of_sizes = bool(node.outputs) and all(tensor.is_sizes for tensor in node.outputs)
    return of_sizes or node.op in _WITHOUT_KERNEL


def _dtype_name(node: Node) -> str:
    """Return the dtype in which a node computes."""
    return next((t.dtype.name for t in node.outputs if t.dtype.is_floating), tf.float32.name)
