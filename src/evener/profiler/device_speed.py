"""Measured speed of devices, and of transfers between them.

This file imports TensorFlow; `evener.profile` itself does not import it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener.devices.names import tf_device
from evener.errors import ProfileError, did_you_mean
from evener.plan.names import HOST_DEVICE
from evener.profile.cluster import Cluster, ClusterDevice, Link, Machine

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
    """Speed of a device.

    Args:
        flops: Pairs of a dtype and the floating-point operations per second of its fastest matrix
            product, above 0.
        bytes_per_second: Memory bandwidth, reads and writes together, above 0.
        launch_seconds: Seconds of one small operation inside a function, above 0.
    """

    flops: tuple[tuple[str, float], ...]
    bytes_per_second: float
    launch_seconds: float

    def flops_per_second(self, dtype: str = "float32") -> float:
        """Return the speed for a dtype; for an unmeasured dtype, that of the first one."""
        return dict(self.flops).get(dtype, self.flops[0][1])


def speed_from_json(value: Mapping[str, Any]) -> DeviceSpeed:
    """Return the speed from the JSON value of its `dataclasses.asdict`."""
    return DeviceSpeed(
        flops=tuple((str(dtype), float(flops)) for dtype, flops in value["flops"]),
        bytes_per_second=float(value["bytes_per_second"]),
        launch_seconds=float(value["launch_seconds"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """Speed of transfers between two devices.

    Args:
        devices: Names of the two devices; ``"cpu:0"`` also stands for the host.
        bytes_per_second: Bandwidth, above 0; ``inf`` if they share memory.
        latency_seconds: Transfer seconds of a small tensor, at least 0.
    """

    devices: tuple[str, str]
    bytes_per_second: float
    latency_seconds: float


class Stopwatch:
    """Stopwatch for functions that TensorFlow runs.

    Args:
        now: Function that returns the time in seconds.
        wait: Function that waits until the devices are idle.
    """

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
    """Measure the speed of a device. It takes about a second.

    Args:
        name: Device name, such as ``"gpu:0"``.
        dtypes: Dtypes whose matrix products are timed; other dtypes get the speed of the first.
        stopwatch: Stopwatch; None for the real one.
    """
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

    Args:
        names: Device names, such as ``("gpu:0", "gpu:1")``.
        stopwatch: Stopwatch; None for the real one.
    """
    watch = stopwatch or Stopwatch()
    pairs = list(itertools.combinations(dict.fromkeys((*names, HOST_DEVICE)), 2))
    return tuple(_measure_link(pair, watch) for pair in pairs)


def make_cluster(
    devices: Sequence[ClusterDevice], links: Sequence[LinkSpeed], *, name: str = ""
) -> Cluster:
    """Return a cluster of one machine from measured links.

    The slowest link between two devices counts for all pairs, and the slowest link to the host for
    all devices, so a plan never expects more bandwidth than there is.

    Args:
        devices: Devices, all in machine 0.
        links: Links between all pairs of devices, and between each device and the host.
        name: Name of the cluster, for tables.

    Raises:
        ProfileError: PROF-012 if a link was not measured.
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
