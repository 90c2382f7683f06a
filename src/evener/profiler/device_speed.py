"""How fast devices compute, and how fast tensors travel between them, measured.

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
from evener.profile.cluster import Cluster, ClusterDevice, Link, Machine

DTYPES = ("float32", "float16", "bfloat16")
HOST = "cpu:0"
_SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
_ENOUGH_SECONDS = 0.005
_ROUNDS = 5
_COPIED_BYTES = 1 << 25
_NUM_HOPS = 8
_SHARED_MEMORY = 1e12
"""Bytes per second from which two devices are said to share one memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """How fast a device is.

    Args:
        flops: Pairs of a dtype and the floating-point operations per second of its best product of
            matrices, above 0.
        bytes_per_second: That its memory is read and written at, above 0.
        launch_seconds: What one small operation takes in a function, above 0.
    """

    flops: tuple[tuple[str, float], ...]
    bytes_per_second: float
    launch_seconds: float

    def flops_per_second(self, dtype: str = "float32") -> float:
        """Return the speed for a dtype; of one that was not measured, that of the first."""
        return dict(self.flops).get(dtype, self.flops[0][1])


def speed_from_json(value: Mapping[str, Any]) -> DeviceSpeed:
    """Return the speed of which `dataclasses.asdict` made a value, on its way through JSON."""
    return DeviceSpeed(
        flops=tuple((str(dtype), float(flops)) for dtype, flops in value["flops"]),
        bytes_per_second=float(value["bytes_per_second"]),
        launch_seconds=float(value["launch_seconds"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """How fast tensors travel between two devices.

    Args:
        devices: The names of the two; ``"cpu:0"`` also stands for the host.
        bytes_per_second: ``inf`` where they share one memory.
        latency_seconds: Of a small tensor.
    """

    devices: tuple[str, str]
    bytes_per_second: float
    latency_seconds: float


class Stopwatch:
    """Takes the time of functions that TensorFlow runs.

    Args:
        now: Returns the time in seconds.
        wait: Waits until devices have computed all that they were asked to.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        wait: Callable[[], Any] = tf.test.experimental.sync_devices,
    ) -> None:
        self._now, self._wait = now, wait

    def least(self, call: Callable[[], Any]) -> float:
        """Return the least seconds of a few calls; the first, which traces, does not count."""
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
    """Measure how fast a device is. It takes about a second.

    Args:
        name: Such as ``"gpu:0"``.
        dtypes: For which products of matrices are timed, the first one for all others.
        stopwatch: Takes the time; another one for tests.
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
    """Measure the links between each two devices, and between each and the host.

    Args:
        names: Such as ``("gpu:0", "gpu:1")``.
        stopwatch: Takes the time; another one for tests.
    """
    watch = stopwatch or Stopwatch()
    pairs = list(itertools.combinations(dict.fromkeys((*names, HOST)), 2))
    return tuple(_measure_link(pair, watch) for pair in pairs)


def make_cluster(
    devices: Sequence[ClusterDevice], links: Sequence[LinkSpeed], *, name: str = ""
) -> Cluster:
    """Return a cluster of one machine from measured links.

    Its link between devices is the slowest between two of them, and that to the host the slowest
    to the host: what a plan expects is then never better than what is there.

    Args:
        devices: The devices, all of machine 0.
        links: Between each two of them, and between each and the host.
        name: For tables.

    Raises:
        ProfileError: PROF-012 if a link was not measured.
    """
    known = {frozenset(link.devices): link for link in links}
    names = [device.name for device in devices]
    between = [_found(known, pair) for pair in itertools.combinations(names, 2)]
    to_host = [_found(known, (one, HOST)) for one in names if one != HOST]
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
    """Send a tensor there and back, and subtract the time of staying on the first device."""
    one, other = pair
    small, large = tf.ones([1]), tf.zeros([_COPIED_BYTES // 4])
    latency = _hops(one, other, small, watch) - _hops(one, one, small, watch)
    seconds = _hops(one, other, large, watch) - _hops(one, one, large, watch) - latency
    speed = _COPIED_BYTES / seconds if seconds > 0 else math.inf
    return LinkSpeed(
        devices=pair,
        bytes_per_second=speed if speed < _SHARED_MEMORY else math.inf,
        latency_seconds=max(latency, 0.0),
    )


def _hops(one: str, other: str, value: tf.Tensor, watch: Stopwatch) -> float:
    """Return the seconds of one of several additions, on two devices in turns."""

    def run(given: tf.Tensor) -> tf.Tensor:
        for number in range(_NUM_HOPS):
            with tf.device(tf_device((one, other)[number % 2])):
                given = given + 1.0
        return given

    return _seconds(run, value, one, watch) / _NUM_HOPS


def _chain(name: str, value: tf.Tensor, watch: Stopwatch, count: int) -> float:
    """Return the seconds of one of several additions, one after the other."""

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
    """Return the best operations per second of products of matrices that grow until they are long.

    The longer they take, the less the start of a product counts.
    """
    best = 0.0
    for size in _SIZES:
        # Products of such matrices stay as large as they are.
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
