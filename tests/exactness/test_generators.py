"""Generators of a strategy's scope draw the numbers of plain Python."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import evener

DRAWS = {
    "normal": lambda g, x: g.normal(tf.shape(x)),
    "whole_numbers": lambda g, x: g.uniform([tf.shape(x)[0]], 0, 1000, dtype=tf.int32),
    "keys": lambda g, x: tf.random.stateless_normal(tf.shape(x), g.make_seeds(1)[:, 0]),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("makes_in_scope", [True, False])
def test_a_generator_of_the_scope_draws_the_numbers_of_plain_python(
    draw: str, makes_in_scope: bool
) -> None:
    """Replicas of other strategies add their number to its key; one device has no number."""
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1", "cpu:2"], shares=[2, 0, 3])
    with strategy.scope() if makes_in_scope else contextlib.nullcontext():
        ours = tf.random.Generator.from_seed(5)
    theirs = tf.random.Generator.from_seed(5)
    x = tf.zeros([7, 3])
    step = tf.function(lambda x: strategy.run(DRAWS[draw], (ours, x)))
    one_device = tf.function(lambda x: DRAWS[draw](theirs, x))
    for _ in range(2):
        np.testing.assert_array_equal(step(x), one_device(x))
        np.testing.assert_array_equal(ours.state, theirs.state)
    np.testing.assert_array_equal(DRAWS[draw](ours, x), DRAWS[draw](theirs, x))


def test_a_generator_of_another_strategy_is_left_alone() -> None:
    evener.Strategy(devices=["cpu:0", "cpu:1"])
    mirrored = tf.distribute.MirroredStrategy(["cpu:1", "cpu:2"])
    with mirrored.scope():
        generator = tf.random.Generator.from_seed(5)
    first, second = mirrored.run(lambda: generator.uniform([2])).values
    assert not np.allclose(first, second)
