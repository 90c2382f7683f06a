"""Sums and means in float16 and bfloat16, with XLA and without, against one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener


def statistics(x: Any) -> Any:
    """Reductions over the batch, and the gradients of a loss."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        classes = tf.range(tf.shape(x)[0]) % 8
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, x)
        loss = tf.reduce_mean(losses)
    rows = tf.reshape(x, [-1, 2, 4])
    moments = (*tf.nn.moments(x, [0]), tf.math.reduce_variance(x), tf.math.reduce_std(x))
    means = tf.reduce_mean(x), tf.reduce_mean(rows, 0, keepdims=True), tf.reduce_mean(rows, [0, 1])
    sums = tf.reduce_sum(x / 256, 0), tf.norm(x / 256), tf.nn.l2_loss(x / 256)
    return loss, tape.gradient(loss, x), *moments, *means, *sums


@pytest.mark.parametrize("jit_compile", [True, False])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_reductions_are_those_of_one_device(dtype: tf.DType, jit_compile: bool) -> None:
    """The sum of 16,000 numbers around 100 is no float16, their mean is one.

    Without XLA, the kernel of one device adds up float16 in float16, so few numbers and small ones.
    """
    is_wide = jit_compile or dtype == tf.bfloat16
    rows, scale = (2000, 100.0) if is_wide else (80, 0.1)
    numbers = np.random.default_rng(1).normal(loc=scale, scale=scale / 10, size=(rows, 8))
    x = tf.cast(tf.constant(numbers), dtype)
    plain = tf.function(statistics, autograph=False, jit_compile=jit_compile)
    several = evener.distribute(plain, devices=["cpu:0", "cpu:1", "cpu:2"], shares=[5, 0, 3])
    for actual, expected in zip(several(x), plain(x), strict=True):
        assert actual.dtype == expected.dtype == dtype
        actual, expected = (tf.cast(value, tf.float32).numpy() for value in (actual, expected))
        largest = np.abs(expected).max()
        assert np.isfinite(largest)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=0.02 * largest + 1e-6)


def test_a_size_of_the_data_that_nothing_needs() -> None:
    def masked(x: Any) -> Any:
        tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0))
        return 2 * x

    step = tf.function(masked, autograph=False, jit_compile=True)
    x = tf.random.stateless_normal([9, 3], [1, 2])
    several = evener.distribute(step, devices=["cpu:0", "cpu:1"], shares=[5, 4])
    np.testing.assert_array_equal(several(x), 2 * x)
