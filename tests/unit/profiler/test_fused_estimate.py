"""Estimated times of layers, fused and not, against what one counts by hand."""

from __future__ import annotations

import pytest
from keras import layers

from evener.profile import LayerTimes
from evener.profiler.device_speed import DeviceSpeed, estimated_times
from evener.profiler.layers import SplitStep, split_step
from unit.profiler.models import FLOAT, dense, sequence, traced

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
