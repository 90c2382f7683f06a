"""Speeds of devices and links, and times that are estimated from them, counted by hand.

No number of seconds that a real clock says is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from keras import layers

from evener.errors import ProfileError
from evener.profile import ClusterDevice, LayerTimes
from evener.profiler.device_speed import (
    DeviceSpeed,
    LinkSpeed,
    Stopwatch,
    estimated_times,
    make_cluster,
    measure_device,
    measure_links,
)
from evener.profiler.layers import SplitStep, split_step
from unit.profiler.models import FLOAT, dense, sequence, traced

GPUS = tuple(ClusterDevice(name=f"gpu:{k}", type="A", memory_bytes=8) for k in range(2))


class Said(Stopwatch):
    """Runs everything once and says times in turns."""

    def __init__(self, *seconds: float) -> None:
        super().__init__()
        self._seconds = list(seconds)

    def least(self, call: Callable[[], Any]) -> float:
        call()
        return self._seconds.pop(0)


def test_a_device_has_speeds_above_zero() -> None:
    speed = measure_device("cpu:1", ("float32",))
    assert speed.flops_per_second() > 0
    assert speed.bytes_per_second > 0
    assert speed.launch_seconds > 0


def test_speeds_are_what_the_stopwatch_says() -> None:
    # 64 small additions; 4 of 32 MiB, which are read and written; 2 products of 128 x 128.
    speed = measure_device("cpu:0", ("float64",), Said(64e-6, 4 * 0.001001, 0.01))
    assert speed.launch_seconds == pytest.approx(1e-6)
    assert speed.bytes_per_second == pytest.approx(2 * (1 << 25) / 0.001)
    assert speed.flops == (("float64", pytest.approx(4 * 128**3 / 0.01)),)


def test_links_are_what_the_stopwatch_says() -> None:
    # 8 hops: small ones that change the device and that do not, then large ones.
    there, here, far, near = 8 * 3e-5, 8 * 1e-5, 8 * 0.00302, 8 * 0.001
    (link,) = measure_links(("cpu:1",), Said(there, here, far, near))
    assert link.devices == ("cpu:1", "cpu:0")
    assert link.latency_seconds == pytest.approx(2e-5)
    assert link.bytes_per_second == pytest.approx((1 << 25) / 0.002)
    # Devices of one memory have no limit.
    (link,) = measure_links(("cpu:0", "cpu:1"), Said(1e-5, 1e-5, 1e-3, 1e-3))
    assert link == LinkSpeed(
        devices=("cpu:0", "cpu:1"), bytes_per_second=math.inf, latency_seconds=0.0
    )


def test_a_dtype_that_was_not_measured_is_as_fast_as_the_first() -> None:
    speed = DeviceSpeed(
        flops=(("float32", 2.0), ("float16", 8.0)), bytes_per_second=1.0, launch_seconds=1.0
    )
    assert [speed.flops_per_second(dtype) for dtype in ("float16", "float64")] == [8.0, 2.0]


def link(source: str, target: str, speed: float, latency: float = 0.0) -> LinkSpeed:
    return LinkSpeed(devices=(source, target), bytes_per_second=speed, latency_seconds=latency)


def test_a_cluster_has_the_slowest_links() -> None:
    more = (*GPUS, ClusterDevice(name="gpu:2", type="B"))
    links = (
        link("gpu:0", "gpu:1", 40.0, 1e-6),
        link("gpu:2", "gpu:0", 10.0, 2e-6),
        link("gpu:1", "gpu:2", 20.0, 9e-6),
        *(link(device.name, "cpu:0", 5.0 + k, 1e-5) for k, device in enumerate(more)),
    )
    cluster = make_cluster(more, links, name="desk")
    (machine,) = cluster.machines
    assert cluster.name == "desk"
    assert (machine.link.bytes_per_second, machine.link.latency_seconds) == (10.0, 9e-6)
    assert (machine.host_link.bytes_per_second, machine.host_link.latency_seconds) == (5.0, 1e-5)
    # One device needs no link to another.
    cluster = make_cluster(GPUS[:1], [link("gpu:0", "cpu:0", 5.0)])
    assert cluster.machines[0].link.bytes_per_second == math.inf


def test_a_link_that_is_missing_is_named() -> None:
    with pytest.raises(ProfileError, match="PROF-012") as raised:
        make_cluster(GPUS, [link("gpu:0", "cpu:0", 5.0), link("gpu:1", "cpu:0", 5.0)])
    assert "gpu:0 and gpu:1" in raised.value.what


SAMPLES = 64
NEVER = 1e30
"""A speed at which something takes no time."""


def split(*body: layers.Layer, inputs: int = 32) -> SplitStep:
    model = sequence((inputs,), *body, dense(1, "head"))
    return split_step(traced(model, (1,), optimizer="sgd"))


def times_of(step: SplitStep, name: str, speed: DeviceSpeed, *, fused: bool = True) -> LayerTimes:
    tasks = step.layers[step.chain.names.index(name)]
    return estimated_times(tasks, speed, [SAMPLES], is_fused=fused)


def speed(
    *, flops: float = NEVER, float16: float = NEVER, moved: float = NEVER, launch: float = 0.0
) -> DeviceSpeed:
    return DeviceSpeed(
        flops=(("float32", flops), ("float16", float16)),
        bytes_per_second=moved,
        launch_seconds=launch,
    )


def test_a_product_takes_its_operations() -> None:
    found = times_of(split(dense(8, "hidden")), "hidden", speed(flops=1e9))
    assert found.forward(SAMPLES) == pytest.approx(2 * SAMPLES * 32 * 8 / 1e9)


def test_elementwise_operations_read_once_and_write_what_others_need() -> None:
    step = split(dense(8, "hidden"), layers.Activation("gelu", name="gelu"))
    one_tensor = SAMPLES * 8 * FLOAT
    found = times_of(step, "gelu", speed(moved=1.0)).forward(SAMPLES)
    # It reads its input; its result, and what its gradient needs, are written.
    assert 2 * one_tensor <= found <= 6 * one_tensor
    # Each of its operations reads and writes tensors of its own.
    assert times_of(step, "gelu", speed(moved=1.0), fused=False).forward(SAMPLES) > 1.5 * found


def test_what_only_renames_takes_no_time() -> None:
    step = split(dense(8, "hidden"), layers.Reshape((2, 4)), layers.Flatten(name="flat"))
    for fused in (True, False):
        slow = speed(moved=1.0, launch=1.0)
        assert times_of(step, "flat", slow, fused=fused).forward(SAMPLES) == 0


def test_a_loop_takes_its_iterations() -> None:
    def seconds(length: int) -> float:
        body = (layers.Reshape((length, 4)), layers.LSTM(8, name="lstm"))
        step = split(*body, inputs=4 * length)
        return times_of(step, "lstm", speed(launch=1e-6)).forward(SAMPLES)

    assert seconds(16) == pytest.approx(2 * seconds(8), rel=0.2)


def test_fusing_never_takes_longer() -> None:
    step = split(dense(8, "hidden", "relu"), layers.BatchNormalization(name="norm"))
    card = speed(flops=1e12, moved=1e11, launch=5e-6)
    for name in step.chain.names:
        fused, unfused = (times_of(step, name, card, fused=fused) for fused in (True, False))
        assert fused.forward(SAMPLES) <= unfused.forward(SAMPLES)
        assert fused.backward(SAMPLES) <= unfused.backward(SAMPLES)
        assert fused.update_seconds <= unfused.update_seconds


def test_an_update_reads_and_writes_weights_and_slots() -> None:
    model = sequence((32,), dense(8, "hidden"), dense(1, "head"))
    step = split_step(traced(model, (1,), optimizer="adam"))
    weights = (32 * 8 + 8) * FLOAT
    found = times_of(step, "hidden", speed(moved=1.0)).update_seconds
    # Reads weights, gradients and two slots; writes weights and slots.
    assert 6 * weights <= found <= 9 * weights
