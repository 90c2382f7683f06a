"""Stages keep the activations of as many micro-batches as a plan allows, whatever their layers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.plan import Plan, PlanDevice, Replica, Stage

DEVICES = ("cpu:0", "cpu:1")
NUM_MICRO_BATCHES = 8
# Of the first convolution's results, the largest by far.
ACTIVATION_BYTES = 64 * 32 * 32 * 32 * 4


def convolutions() -> keras.Model:
    """Return layers whose kernels must not be called without samples: they are in branches."""
    return keras.Sequential(
        [
            keras.layers.Input((32, 32, 3)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="first"),
            keras.layers.MaxPooling2D(4, name="pool"),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu", name="end_second"),
            keras.layers.GlobalAveragePooling2D(name="end_average"),
            keras.layers.Dense(10, name="end_last"),
        ]
    )


def dense() -> keras.Model:
    """Return layers that are called without samples too."""
    return keras.Sequential(
        [
            keras.layers.Input((32, 32, 3)),
            keras.layers.Dense(32, activation="gelu", name="first"),
            keras.layers.Dense(1, name="pool"),
            keras.layers.Flatten(name="end_flat"),
            keras.layers.Dense(10, name="end_last"),
        ]
    )


def peak_of_a_step(model_of: Any, in_flight: int) -> int:
    """Return the most bytes that a step has in memory beyond what is there before."""
    replica = Replica(
        share=1,
        stages=(
            Stage(device=DEVICES[0], layers=("first", "pool")),
            Stage(device=DEVICES[1], layers=("end_*",)),
        ),
        num_micro_batches=NUM_MICRO_BATCHES,
        in_flight=in_flight,
    )
    devices = tuple(map(PlanDevice.named, DEVICES))
    with evener.Strategy(Plan(devices=devices, replicas=(replica,))).scope():
        model = model_of()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=False)
    x, y = np.ones((64, 32, 32, 3), "float32"), np.zeros(64, "int32")
    for _ in range(2):
        model.train_on_batch(x, y)
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    model.train_on_batch(x, y)
    return tf.config.experimental.get_memory_info("CPU:0")["peak"] - before


@pytest.mark.parametrize("model_of", [convolutions, dense])
def test_a_stage_keeps_as_many_micro_batches_as_are_in_flight(model_of: Any) -> None:
    all_of_them, single = (
        peak_of_a_step(model_of, in_flight) for in_flight in (NUM_MICRO_BATCHES, 1)
    )
    assert all_of_them - single > 0.6 * ACTIVATION_BYTES
