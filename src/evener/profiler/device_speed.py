"""Speed of devices and links, and the times of layers that follow from it without running them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener.devices.names import tf_device
from evener.errors import ProfileError, did_you_mean
from evener.graph.nodes import Node, Tensor
from evener.graph.ops.registry import operation
from evener.graph.rewrites import LOOPS
from evener.partition.memory import node_flops, num_bytes, num_iterations
from evener.partition.tasks import StepTask
from evener.plan.parts import HOST_DEVICE
from evener.plan.profile import Cluster, ClusterDevice, Curve, LayerTimes, Link, Machine
from evener.profiler.layers import LayerTasks

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
    devices: tuple[str, str]  # Names of the two devices; ``"cpu:0"`` also stands for the host
    bytes_per_second: float  # Bandwidth, above 0; ``inf`` if they share memory
    latency_seconds: float  # Transfer seconds of a small tensor, at least 0


class Stopwatch:
    def least(self, call: Callable[[], Any]) -> float:
        call()
        times: list[float] = []
        for _ in range(_ROUNDS):
            tf.test.experimental.sync_devices()
            begin = time.perf_counter()
            call()
            tf.test.experimental.sync_devices()
            times.append(time.perf_counter() - begin)
        return max(min(times), 1e-9)


def measure_device(
    name: str, dtypes: Sequence[str] = DTYPES, stopwatch: Stopwatch | None = None
) -> DeviceSpeed:
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
    """Measure the links between all pairs of devices, and between each device and the host.

    A tensor is sent back and forth; the time of the same work on one device is subtracted.
    """
    watch = stopwatch or Stopwatch()
    small, large = tf.ones([1]), tf.zeros([_COPIED_BYTES // 4])
    links: list[LinkSpeed] = []
    for pair in itertools.combinations(dict.fromkeys((*names, HOST_DEVICE)), 2):
        source, target = pair
        latency, seconds = (
            _hops(source, target, value, watch) - _hops(source, source, value, watch)
            for value in (small, large)
        )
        seconds -= latency
        speed = _COPIED_BYTES / seconds if seconds > 0 else math.inf
        links.append(
            LinkSpeed(
                devices=pair,
                bytes_per_second=speed if speed < _SHARED_MEMORY else math.inf,
                latency_seconds=max(latency, 0.0),
            )
        )
    return tuple(links)


def make_cluster(
    devices: Sequence[ClusterDevice], links: Sequence[LinkSpeed], *, name: str = ""
) -> Cluster:
    """Return a cluster of one machine from measured links.

    The slowest link between two devices counts for all pairs, and the slowest link to the host for
    all devices, so a plan never expects more bandwidth than there is.
    """
    known = {frozenset(link.devices): link for link in links}

    def slowest(pairs: Iterable[tuple[str, str]]) -> Link:
        found: list[LinkSpeed] = []
        for pair in pairs:
            if frozenset(pair) not in known:
                names = sorted({name for devices in known for name in devices})
                unknown = next((name for name in pair if name not in names), "")
                raise ProfileError(
                    "PROF-012",
                    f"The link between {pair[0]} and {pair[1]} was not measured.",
                    why=f"There are measurements of links between "
                    f"{', '.join(names) or 'no devices'}."
                    + (did_you_mean(unknown, names) if unknown else ""),
                    fix="Measure the links between all devices of the cluster.",
                )
            found.append(known[frozenset(pair)])
        if not found:
            return Link()
        return Link(
            bytes_per_second=min(link.bytes_per_second for link in found),
            latency_seconds=max(link.latency_seconds for link in found),
        )

    names = [device.name for device in devices]
    between = slowest(itertools.combinations(names, 2))
    to_host = slowest((device, HOST_DEVICE) for device in names if device != HOST_DEVICE)
    machine = Machine(link=between, host_link=to_host)
    return Cluster(devices=tuple(devices), machines=(machine,), name=name)


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
    """Return the highest operations per second of matrix products of increasing size."""
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


_WITHOUT_KERNEL = frozenset(
    {
        *("Const", "Identity", "IdentityN", "NoOp", "PreventGradient", "ReadVariableOp"),
        *("Reshape", "Shape", "ShapeN", "Size", "Rank", "Squeeze", "ExpandDims", "StopGradient"),
        *("BroadcastGradientArgs", "EnsureShape", "VarIsInitializedOp", "VarHandleOp"),
    }
)
_KERNELS = (
    *("AvgPool", "Conv", "Depthwise", "Einsum", "Gather", "MatMul", "BatchMatMul", "MaxPool"),
    *("ResourceGather", "ResourceScatter", "Scatter", "Sort", "SparseSegment", "TensorScatter"),
    *("TopK", "Unsorted"),
)


def estimated_times(
    tasks: LayerTasks, speed: DeviceSpeed, batch_sizes: Sequence[int], *, is_fused: bool = False
) -> LayerTimes:
    sizes = sorted(set(batch_sizes))

    def seconds(task: StepTask, size: int) -> float:
        if is_fused:
            return _fused_seconds(task, speed, size)
        return sum(_kernel_seconds(node, speed, size) for node in task.nodes)

    def curve(some: Sequence[StepTask]) -> Curve:
        return Curve(tuple((size, sum(seconds(task, size) for task in some)) for size in sizes))

    return LayerTimes(
        forward=curve(tasks.forward),
        backward=curve(tasks.backward),
        update_seconds=curve(tasks.once).points[0][1],
    )


def _fused_seconds(task: StepTask, speed: DeviceSpeed, num_samples: int) -> float:
    """Return the seconds of a task whose elementwise operations are fused.

    ::

        convolution --> mean, subtract, multiply, cast, relu --> convolution
           kernel        one pass over memory: reads x, writes       kernel
                         what another kernel or pass needs

    What is fused reads each tensor that others made once, and writes what others need.
    """
    nodes = [node for node in task.nodes if not _has_no_kernel(node)]
    fused = {
        node
        for node in nodes
        if operation(node.op).flops is None
        and not (node.bodies or node.op in LOOPS or node.op.startswith(_KERNELS))
    }
    needed = {_source(tensor) for tensor in task.fetches}
    reads: set[Tensor] = set()
    total = 0.0
    for node in nodes:
        sources = [_source(tensor) for tensor in node.inputs]
        if node in fused:
            reads.update(tensor for tensor in sources if tensor.node not in fused)
        else:
            total += _kernel_seconds(node, speed, num_samples)
        # What is written into a variable is a result of the kernel.
        if node not in fused or node.op.startswith("Assign"):
            needed.update(tensor for tensor in sources if tensor.node in fused)
    writes = [tensor for tensor in needed if tensor.node in fused]
    moved = _moved_bytes((*reads, *writes), num_samples)
    launches = max(len(writes), 1) if fused else 0
    return total + moved / speed.bytes_per_second + launches * speed.launch_seconds


def _kernel_seconds(node: Node, speed: DeviceSpeed, num_samples: int) -> float:
    """Return the seconds of an operation, or of all iterations of a loop."""
    if _has_no_kernel(node):
        return 0.0
    if node.op in LOOPS and "body" in node.bodies:
        body = (_kernel_seconds(inner, speed, num_samples) for inner in node.bodies["body"])
        return num_iterations(node) * sum(body)
    dtypes = (tensor.dtype for tensor in node.outputs)
    dtype = next((dtype.name for dtype in dtypes if dtype.is_floating), tf.float32.name)
    computing = node_flops(node, num_samples) / speed.flops_per_second(dtype)
    tensors = [tensor for tensor in (*node.inputs, *node.outputs) if not tensor.is_sizes]
    moving = _moved_bytes(tensors, num_samples) / speed.bytes_per_second
    return speed.launch_seconds + max(computing, moving)


def _moved_bytes(tensors: Iterable[Tensor], num_samples: int) -> int:
    """Return the bytes of tensors; of a list of tensors, what its elements move counts instead."""
    return sum(num_bytes(tensor, num_samples) for tensor in tensors if tensor.dtype != tf.variant)


def _has_no_kernel(node: Node) -> bool:
    """Return whether a node only renames a tensor, or computes with sizes, as the host does."""
    of_sizes = bool(node.outputs) and all(tensor.is_sizes for tensor in node.outputs)
    return of_sizes or node.op in _WITHOUT_KERNEL


def _source(tensor: Tensor) -> Tensor:
    """Return the tensor whose elements a tensor has, which operations without a kernel renamed."""
    while (
        _has_no_kernel(tensor.node)
        and tensor.node.op != "ReadVariableOp"
        and tensor.node.inputs
        and not tensor.is_sizes
    ):
        tensor = tensor.node.inputs[0]
    return tensor
