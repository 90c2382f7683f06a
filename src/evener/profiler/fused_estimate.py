"""Estimated times of layers whose elementwise operations are fused, as XLA fuses them.

::

    convolution --> mean, subtract, multiply, cast, relu --> convolution
       kernel        one pass over memory: reads x, writes       kernel
                     what another kernel or pass needs

A product, a convolution or another operation that moves rows is a kernel of its own: it takes the
longer of its arithmetic and its bytes, plus a launch. All else of a task is fused: it reads each
tensor that others made once, and writes what others need.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from evener.engine.flops.sizes import num_bytes
from evener.engine.partition.tasks import Task
from evener.engine.trace.functional import LOOPS
from evener.graph.nodes import Node, Tensor
from evener.ops.registry import operation
from evener.profile import LayerTimes
from evener.profiler.device_speed import DeviceSpeed
from evener.profiler.estimate import has_no_kernel, kernel_seconds, times_of
from evener.profiler.split import LayerTasks

_KERNELS = (
    *("AvgPool", "Conv", "Depthwise", "Einsum", "Gather", "MatMul", "BatchMatMul", "MaxPool"),
    *("ResourceGather", "ResourceScatter", "Scatter", "Sort", "SparseSegment", "TensorScatter"),
    *("TopK", "Unsorted"),
)


def fused_times(tasks: LayerTasks, speed: DeviceSpeed, batch_sizes: Sequence[int]) -> LayerTimes:
    """Return the estimated times of a layer on a device.

    Args:
        tasks: Tasks of the layer.
        speed: Speed of the device.
        batch_sizes: Numbers of samples of the points of the curves.
    """

    def seconds(task: Task, num_samples: int) -> float:
        return _seconds(task, speed, num_samples)

    return times_of(tasks, seconds, batch_sizes)


def _seconds(task: Task, speed: DeviceSpeed, num_samples: int) -> float:
    """Return the seconds of a task."""
    nodes = [node for node in task.nodes if not has_no_kernel(node)]
    fused = {node for node in nodes if not _is_kernel(node)}
    needed = {_source(tensor) for tensor in task.fetches}
    reads: set[Tensor] = set()
    total = 0.0
    for node in nodes:
        sources = [_source(tensor) for tensor in node.inputs]
        if node in fused:
            reads.update(tensor for tensor in sources if tensor.node not in fused)
            if node.op.startswith("Assign"):
                # What is written into a variable is a result of the kernel.
                needed.update(tensor for tensor in sources if tensor.node in fused)
        else:
            needed.update(tensor for tensor in sources if tensor.node in fused)
            total += kernel_seconds(node, speed, num_samples)
    writes = [tensor for tensor in needed if tensor.node in fused]
    moved = sum(num_bytes(t, num_samples) for t in (*reads, *writes) if t.dtype != tf.variant)
    launches = max(len(writes), 1) if fused else 0
    return total + moved / speed.bytes_per_second + launches * speed.launch_seconds


def _is_kernel(node: Node) -> bool:
    is_known = operation(node.op).flops is not None
    return is_known or bool(node.bodies) or node.op in LOOPS or node.op.startswith(_KERNELS)


def _source(tensor: Tensor) -> Tensor:
    """Return the tensor whose elements a tensor has, which operations without a kernel renamed."""
    while (
        has_no_kernel(tensor.node)
        and tensor.node.op != "ReadVariableOp"
        and tensor.node.inputs
        and not tensor.is_sizes
    ):
        tensor = tensor.node.inputs[0]
    return tensor
