"""Speed of devices and links, and the times of layers that follow from it without running them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener.devices.names import tf_device
from evener.errors import ProfileError, did_you_mean
from evener.graph.nodes import Node, Tensor
from evener.graph.ops.registry import operation
from evener.graph.rewrites import LOOPS
from evener.partition.memory import node_flops, num_bytes, num_iterations
from evener.partition.tasks import Task
from evener.plan.parts import HOST_DEVICE
from evener.plan.profile import Cluster, ClusterDevice, Curve, LayerTimes, Link, Machine
from evener.profiler.layers import LayerTasks

# Measured speed of devices, and of transfers between them.
#
# This file imports TensorFlow; `evener.profile` itself does not import it.

DTYPES = ("float32", "float16", "bfloat16")
_SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
_ENOUGH_SECONDS = 0.005
_ROUNDS = 5
_COPIED_BYTES = 1 << 25
_NUM_HOPS = 8
_SHARED_MEMORY = 1e12
"""Bytes per second above which two devices are assumed to share memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """Speed of a device."""

    # Pairs of a dtype and the floating-point operations per second of its fastest matrix product,
    # above 0
    flops: tuple[tuple[str, float], ...]
    bytes_per_second: float  # Memory bandwidth, reads and writes together, above 0
    launch_seconds: float  # Seconds of one small operation inside a function, above 0

    def flops_per_second(self, dtype: str = "float32") -> float:
        """Return the speed for a dtype; for an unmeasured dtype, that of the first one."""
        return dict(self.flops).get(dtype, self.flops[0][1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """Speed of transfers between two devices."""

    devices: tuple[str, str]  # Names of the two devices; ``"cpu:0"`` also stands for the host
    bytes_per_second: float  # Bandwidth, above 0; ``inf`` if they share memory
    latency_seconds: float  # Transfer seconds of a small tensor, at least 0


class Stopwatch:
    """Stopwatch for functions that TensorFlow runs."""

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        wait: Callable[[], Any] = tf.test.experimental.sync_devices,
    ) -> None:
        self._now, self._wait = now, wait

    def least(self, call: Callable[[], Any]) -> float:
        """Return the least seconds of a few calls, without the first one, which traces."""
        call()
        times: list[float] = []
        for _ in range(_ROUNDS):
            self._wait()
            begin = self._now()
            call()
            self._wait()
            times.append(self._now() - begin)
        return max(min(times), 1e-9)


def measure_device(
    name: str, dtypes: Sequence[str] = DTYPES, stopwatch: Stopwatch | None = None
) -> DeviceSpeed:
    """Measure the speed of a device. It takes about a second."""
    watch = stopwatch or Stopwatch()
    launch = _chain(name, tf.ones([1]), watch, 64)
    count = _COPIED_BYTES // 4
    # Every addition reads and writes the tensor.
    seconds = _chain(name, tf.zeros([count]), watch, 4) - launch
    return DeviceSpeed(
        flops=tuple((dtype, _matmul_speed(name, dtype, watch)) for dtype in dtypes),
        bytes_per_second=2 * _COPIED_BYTES / max(seconds, 1e-9),
        launch_seconds=launch,
    )


def measure_links(
    names: Sequence[str], stopwatch: Stopwatch | None = None
) -> tuple[LinkSpeed, ...]:
    """Measure the links between all pairs of devices, and between each device and the host."""
    watch = stopwatch or Stopwatch()
    pairs = list(itertools.combinations(dict.fromkeys((*names, HOST_DEVICE)), 2))
    return tuple(_measure_link(pair, watch) for pair in pairs)


def make_cluster(
    devices: Sequence[ClusterDevice], links: Sequence[LinkSpeed], *, name: str = ""
) -> Cluster:
    """Return a cluster of one machine from measured links.

    The slowest link between two devices counts for all pairs, and the slowest link to the host for
    all devices, so a plan never expects more bandwidth than there is.
    """
    known = {frozenset(link.devices): link for link in links}
    names = [device.name for device in devices]
    between = [_found(known, pair) for pair in itertools.combinations(names, 2)]
    to_host = [_found(known, (name, HOST_DEVICE)) for name in names if name != HOST_DEVICE]
    machine = Machine(link=_slowest(between), host_link=_slowest(to_host))
    return Cluster(devices=tuple(devices), machines=(machine,), name=name)


def _found(known: Mapping[frozenset[str], LinkSpeed], pair: tuple[str, str]) -> LinkSpeed:
    link = known.get(frozenset(pair))
    if link is None:
        names = sorted({name for names in known for name in names})
        unknown = next((name for name in pair if name not in names), "")
        raise ProfileError(
            "PROF-012",
            f"The link between {pair[0]} and {pair[1]} was not measured.",
            why=f"There are measurements of links between {', '.join(names) or 'no devices'}."
            + (did_you_mean(unknown, names) if unknown else ""),
            fix="Measure the links between all devices of the cluster.",
        )
    return link


def _slowest(links: Sequence[LinkSpeed]) -> Link:
    if not links:
        return Link()
    return Link(
        bytes_per_second=min(link.bytes_per_second for link in links),
        latency_seconds=max(link.latency_seconds for link in links),
    )


def _measure_link(pair: tuple[str, str], watch: Stopwatch) -> LinkSpeed:
    """Send a tensor back and forth, and subtract the time of the same work on one device."""
    source, target = pair
    small, large = tf.ones([1]), tf.zeros([_COPIED_BYTES // 4])
    latency = _hops(source, target, small, watch) - _hops(source, source, small, watch)
    seconds = _hops(source, target, large, watch) - _hops(source, source, large, watch) - latency
    speed = _COPIED_BYTES / seconds if seconds > 0 else math.inf
    return LinkSpeed(
        devices=pair,
        bytes_per_second=speed if speed < _SHARED_MEMORY else math.inf,
        latency_seconds=max(latency, 0.0),
    )


def _hops(source: str, target: str, value: tf.Tensor, watch: Stopwatch) -> float:
    """Return the seconds of one addition in a series that alternates between two devices."""

    def run(given: tf.Tensor) -> tf.Tensor:
        for number in range(_NUM_HOPS):
            with tf.device(tf_device((source, target)[number % 2])):
                given = given + 1.0
        return given

    return _seconds(run, value, source, watch) / _NUM_HOPS


def _chain(name: str, value: tf.Tensor, watch: Stopwatch, count: int) -> float:
    """Return the seconds of one addition in a series on one device."""

    def run(given: tf.Tensor) -> tf.Tensor:
        with tf.device(tf_device(name)):
            return tf.while_loop(
                lambda number, _: number < count,
                lambda number, now: (number + 1, now + 1.0),
                (0, given),
                parallel_iterations=1,
            )[1]

    return _seconds(run, value, name, watch) / count


def _matmul_speed(name: str, dtype: str, watch: Stopwatch) -> float:
    """Return the highest operations per second of matrix products of increasing size.

    The longer a product takes, the less its launch counts.
    """
    best = 0.0
    for size in _SIZES:
        # With this scale, products have entries of the same magnitude.
        matrix = tf.cast(tf.random.stateless_normal([size, size], (1, 2)) / size**0.5, dtype)

        def run(given: tf.Tensor) -> tf.Tensor:
            with tf.device(tf_device(name)):
                return tf.matmul(tf.matmul(given, given), given)

        seconds = _seconds(run, matrix, name, watch)
        best = max(best, 4 * size**3 / seconds)
        if seconds > _ENOUGH_SECONDS:
            break
    return best


def _seconds(
    run: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor, device: str, watch: Stopwatch
) -> float:
    with tf.device(tf_device(device)):
        value = tf.identity(value)
    function: Any = tf.function(run, autograph=False)
    return watch.least(lambda: function(value))


# Estimated times of layers that cannot be called alone, from their operations and bytes.
#
# The time of an operation is the longer of two: its arithmetic at the speed of the device, and the
# bytes that it reads and writes at the memory bandwidth, plus the launch. Operations that only
# rename
# a tensor or its shape have no kernel and take no time; of a loop, the operations of its body are
# counted for every iteration.

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
    """Return the estimated times of a layer on a device."""

    def seconds(task: Task, num_samples: int) -> float:
        return seconds_of_nodes(task.nodes, speed, num_samples)

    return times_of(tasks, seconds, batch_sizes)


def times_of(
    tasks: LayerTasks, seconds: Callable[[Task, int], float], batch_sizes: Sequence[int]
) -> LayerTimes:
    """Return the times of a layer by the seconds of its tasks."""
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


# Estimated times of layers whose elementwise operations are fused, as XLA fuses them.
#
# ::
#
#     convolution --> mean, subtract, multiply, cast, relu --> convolution
#        kernel        one pass over memory: reads x, writes       kernel
#                      what another kernel or pass needs
#
# A product, a convolution or another operation that moves rows is a kernel of its own: it takes the
# longer of its arithmetic and its bytes, plus a launch. All else of a task is fused: it reads each
# tensor that others made once, and writes what others need.

_KERNELS = (
    *("AvgPool", "Conv", "Depthwise", "Einsum", "Gather", "MatMul", "BatchMatMul", "MaxPool"),
    *("ResourceGather", "ResourceScatter", "Scatter", "Sort", "SparseSegment", "TensorScatter"),
    *("TopK", "Unsorted"),
)


def fused_times(tasks: LayerTasks, speed: DeviceSpeed, batch_sizes: Sequence[int]) -> LayerTimes:
    """Return the estimated times of a layer on a device."""

    def seconds(task: Task, num_samples: int) -> float:
        return _fused_estimate_seconds(task, speed, num_samples)

    return times_of(tasks, seconds, batch_sizes)


def _fused_estimate_seconds(task: Task, speed: DeviceSpeed, num_samples: int) -> float:
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
