"""Steps that are given no batch, and draw all rows that they compute with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.strategy.distribute import _sizes as sizes_of_parts

DEVICES, SHARES = ["cpu:0", "cpu:1", "cpu:2"], [5, 0, 3]
START = np.random.default_rng(0).normal(size=[20, 6]) * 0.2
Draw = Callable[[tf.random.Generator], Any]


def noise(generator: tf.random.Generator) -> Any:
    return [generator.normal([64, 20], dtype=tf.float64)]


def noises_of_unlike_rows(generator: tf.random.Generator) -> Any:
    return [generator.normal([rows, 20], dtype=tf.float64) for rows in (64, 24, 3)]


def make_step(draw: Draw) -> tuple[tf.Variable, Callable[..., Any]]:
    """Return a weight and a step that trains it: a loss over all rows, and what is drawn."""
    weight, generator = tf.Variable(START), tf.random.Generator.from_seed(3)

    def step(rate: Any = 0.1) -> Any:
        loss = tf.constant(0.0, tf.float64)
        with tf.GradientTape() as tape:
            for rows in draw(generator):
                y = tf.tanh(rows @ weight)
                y -= tf.reduce_mean(y, 0)
                loss += tf.reduce_mean(tf.square(tf.matmul(y, y, transpose_b=True) - 1.0))
        weight.assign_sub(tf.cast(rate, tf.float64) * tape.gradient(loss, weight))
        return loss, y

    return weight, step


@pytest.mark.parametrize("draw", [noise, noises_of_unlike_rows])
@pytest.mark.parametrize("door", ["run", "eager"])
def test_equals_one_device(draw: Draw, door: str) -> None:
    expected, plain = make_step(draw)
    actual, step = make_step(draw)
    single = tf.function(plain)
    strategy = evener.Strategy(devices=DEVICES, shares=SHARES)
    distributed: Any = evener.distribute(step, devices=DEVICES, shares=SHARES, in_axes=None)
    rate = tf.constant(0.1)
    several: Any = tf.function(lambda rate: strategy.run(step, (rate,)))
    several = several if door == "run" else distributed
    for _ in range(3):
        for left, right in zip(single(rate), several(rate), strict=True):
            np.testing.assert_allclose(right, left, rtol=1e-9)
    np.testing.assert_allclose(actual, expected, rtol=1e-9)
    report = (strategy if door == "run" else distributed).report()
    assert report.flops_of_parts > 10 * sum(report.flops_once.values())


def test_rows_are_split_by_the_shares() -> None:
    _, step = make_step(noises_of_unlike_rows)
    distributed: Any = evener.distribute(step, devices=DEVICES, shares=SHARES, in_axes=None)
    distributed(tf.constant(0.1))
    [trace] = distributed._traces.steps
    assert sizes_of_parts(None, trace, distributed._controller) == [40, 0, 24]


def test_a_step_without_rows_is_on_the_first_device() -> None:
    distributed: Any = evener.distribute(
        lambda x: x * 2.0, devices=DEVICES, shares=SHARES, in_axes=None
    )
    assert float(distributed(tf.constant(3.0))) == 6.0
    [trace] = distributed._traces.steps
    assert sizes_of_parts(None, trace, distributed._controller) == [1, 0, 0]
