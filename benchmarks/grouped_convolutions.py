"""Convolutions of several groups on a CPU: plain Keras, which compiles each of them, and evener.

    python benchmarks/grouped_convolutions.py

A stack of four convolutions of 64 channels is trained on 24 images of 32 x 32, in 4 groups and in
64, in one process: by Keras and TensorFlow alone, and by evener on one and on two stand-in devices.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
import typer
from rich.table import Table
from side_by_side.figures import terminal

import evener

DEVICES: dict[str, list[str] | None] = {
    "Keras and TensorFlow, one device": None,
    "evener, one device": ["cpu:0"],
    "evener, two devices": ["cpu:0", "cpu:1"],
}
BATCH, SIDE, CHANNELS, LAYERS = 24, 32, 64, 4


def step_of(devices: list[str] | None, groups: int) -> Callable[[], float]:
    """Return a function that makes a step and returns its loss."""
    keras.utils.set_random_seed(1)
    strategy = None if devices is None else evener.Strategy(devices=devices, shares="even")
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        stack = [
            keras.layers.Conv2D(CHANNELS, 3, padding="same", groups=groups, activation="relu")
            for _ in range(LAYERS)
        ]
        model = keras.Sequential([keras.Input((SIDE, SIDE, CHANNELS)), *stack])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run = step if strategy is None else lambda x: strategy.run(step, (x,))
    traced = tf.function(run, autograph=False)
    rng = np.random.default_rng(1)
    batch = tf.constant(rng.standard_normal((BATCH, SIDE, SIDE, CHANNELS)), tf.float32)
    return lambda: float(traced(batch))


def main(rounds: Annotated[int, typer.Option(min=1, help="steps of every contender")] = 7) -> None:
    """Time the first step of every contender, and the others in turns."""
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, logical)
    table = Table(title="seconds", title_justify="left")
    for heading in ("contender", "groups", "first step", "step: median", "least", "most", "loss"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for groups in (4, CHANNELS):
        steps = {who: step_of(devices, groups) for who, devices in DEVICES.items()}
        firsts = {who: timed(step)[0] for who, step in steps.items()}
        times: dict[str, list[float]] = {who: [] for who in steps}
        losses: dict[str, float] = {}
        for _ in range(rounds):
            for who, step in steps.items():
                seconds, losses[who] = timed(step)
                times[who].append(seconds)
        for who, found in times.items():
            figures = (firsts[who], statistics.median(found), min(found), max(found))
            texts = [f"{figure:.3f}" for figure in figures]
            table.add_row(who, str(groups), *texts, f"{losses[who]:.6g}")
    terminal().print(table)


def timed(step: Callable[[], float]) -> tuple[float, float]:
    """Return the seconds of a step, and its loss."""
    begin = time.perf_counter()
    loss = step()
    return time.perf_counter() - begin, loss


if __name__ == "__main__":
    typer.run(main)
