"""Steps at the edges of what can be partitioned, against one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.errors import EvenerWarning

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]
X = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")
IMAGE = np.ones((1, 4, 4, 2), "float32")


def distributed(step: Callable[..., Any], shares: tuple[int, ...] = (13, 4, 7)) -> Any:
    return evener.distribute(step, devices=DEVICES, shares=shares)


def agree(step: Callable[..., Any], x: Any, shares: tuple[int, ...] = (13, 4, 7)) -> None:
    expected = tf.nest.flatten(tf.function(step)(x))
    actual = tf.nest.flatten(distributed(step, shares)(x))
    for wanted, got in zip(expected, actual, strict=True):
        assert wanted.dtype == got.dtype
        np.testing.assert_allclose(wanted, got, rtol=1e-5)


def test_a_sum_in_a_loop_that_starts_from_a_constant() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        total = tf.constant(3.0)
        for k in tf.range(4):
            total += tf.reduce_sum(x * tf.cast(k, tf.float32))
        return total

    agree(step, X)


def test_a_loop_of_no_rounds_keeps_what_it_was_given() -> None:
    start, rounds = tf.Variable(3.0), tf.Variable(0)

    def step(x: tf.Tensor) -> Any:
        most, every, product = -start, start > 0.0, start * 2.0
        for _ in tf.range(rounds):
            most = tf.reduce_max(x)
            every = tf.reduce_all(x > 0)
            product = tf.reduce_prod(x)
        return most, every, product

    agree(step, X)


def test_counters_of_a_loop_beside_a_convolution_without_samples() -> None:
    kernel = tf.Variable(tf.ones([3, 3, 2, 2]))

    def step(x: tf.Tensor) -> Any:
        y, growth, count = tf.nn.conv2d(x, kernel, 1, "SAME"), tf.constant(1.0), 0
        while growth < 10.0:
            y = y * 0.5 + growth
            growth, count = growth * 1.5, count + 1
        z = y - tf.sort(y, 0)
        while growth < 1000.0:
            z = z + growth
            growth = growth * 2.0
        return count, growth, tf.reduce_sum(y), tf.reduce_sum(z)

    agree(step, IMAGE, shares=(4, 7, 13))


def test_integers_that_overflow() -> None:
    def step(x: tf.Tensor) -> Any:
        seed = tf.constant(123456789) * 1103515245 + 12345
        half = (tf.constant(200, tf.uint8) + tf.constant(100, tf.uint8)) // tf.constant(2, tf.uint8)
        place = (tf.shape(x)[0] * 40503001 * 7919) % 1013
        return seed % 1000, half, place

    agree(step, X)


def test_the_maximum_of_infinities_with_a_part_without_samples() -> None:
    kernel = tf.Variable(tf.ones([3, 3, 2, 2]))

    def step(x: tf.Tensor) -> tf.Tensor:
        found = tf.nn.conv2d(x, kernel, 1, "SAME") > 1e9
        return tf.reduce_max(tf.where(found, 1.0, -np.inf))

    agree(step, IMAGE, shares=(4, 7, 13))


def test_sums_times_infinity_and_over_zero() -> None:
    agree(lambda x: (tf.reduce_sum(x) * np.inf, tf.reduce_sum(x, 0) / 0.0), X)


def test_mirrored_padding_with_parts_without_samples() -> None:
    agree(lambda x: tf.pad(x, [[0, 0], [1, 2]], "REFLECT"), X[:2])


def test_no_samples_at_all() -> None:
    agree(lambda x: (tf.reduce_sum(x), x * 2.0), X[:0])


def test_the_signature_of_a_function_is_kept() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 5])])
    def step(x: tf.Tensor) -> Any:
        return x * 2.0, tf.reduce_mean(x)

    double, mean = distributed(step)(X.tolist())
    np.testing.assert_allclose(double, X * 2.0)
    np.testing.assert_allclose(mean, X.mean(), rtol=1e-5)


def test_a_tape_around_the_step_is_right_and_warned_of() -> None:
    step, x = distributed(lambda x: tf.reduce_sum(tf.square(x))), tf.constant(X)
    with pytest.warns(EvenerWarning, match="ENG-081"), tf.GradientTape() as tape:
        tape.watch(x)
        total = step(x)
    np.testing.assert_allclose(tape.gradient(total, x), 2 * X)


def test_ragged_rows_are_traced_once() -> None:
    traces = []

    def step(x: tf.RaggedTensor) -> tf.Tensor:
        traces.append(1)
        return tf.reduce_sum(x.values)

    run = distributed(step)
    for count in (1, 2, 3, 3):
        assert float(run(tf.ragged.constant([[1.0, 2.0], [3.0]] * count))) == 6.0 * count
    assert len(traces) <= 2


def test_two_kinds_of_arguments_are_traced_twice() -> None:
    traces = []

    def step(x: tf.Tensor) -> tf.Tensor:
        traces.append(1)
        return tf.reduce_sum(x)

    run = distributed(step)
    for _ in range(3):
        run(X)
        run(X.astype("float64"))
    assert len(traces) == 2


def test_numbers_that_are_returned_become_tensors() -> None:
    found = distributed(lambda x: {"rows": tf.shape(x)[0], "three": 3})(X)
    assert int(found["three"].numpy()) == 3
    assert int(found["rows"]) == 24


def test_a_step_in_a_loop_keeps_the_static_size() -> None:
    inner = distributed(lambda y: y * 1.0)

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, inner(y) * 0.5), [0, x])[1]

    np.testing.assert_allclose(outer(tf.constant(X)), X / 8, rtol=1e-6)
