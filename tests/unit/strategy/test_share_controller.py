"""Shares change without a new trace, and follow the measured times."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import PlanError, Strategy
from evener.strategy.shares import WINDOW, ShareController


@tf.function
def record_and_review(
    controller: ShareController, samples: list[float], seconds: list[float]
) -> None:
    controller.record_and_review(tf.constant(samples, tf.float64), tf.constant(seconds, tf.float64))


def test_the_ring_keeps_the_last_steps_in_order() -> None:
    controller = ShareController(["cpu:0", "cpu:1"], [1, 1], measured=False)
    for step in range(WINDOW + 3):
        record_and_review(controller, [step, 2 * step], [0.1, 0.2])
    first, second = controller.last_steps()
    assert [samples for samples, _ in first] == list(range(3, WINDOW + 3))
    assert second[0] == (6.0, 0.2)


def test_shares_are_rebalanced_by_measured_times(caplog: pytest.LogCaptureFixture) -> None:
    controller = ShareController(["cpu:0", "cpu:1"], [1, 1], measured=True)
    with caplog.at_level(logging.INFO, logger="evener"):
        for _ in range(WINDOW):
            record_and_review(controller, [32, 32], [0.1, 0.4])
        assert controller.shares == (0.5, 0.5)
        for _ in range(WINDOW):
            record_and_review(controller, [32, 32], [0.1, 0.4])
    assert controller.shares == pytest.approx((0.8, 0.2))
    assert controller.variable.numpy() == pytest.approx([0.8, 0.2])
    (event,) = controller.events
    assert event.step == 2 * WINDOW
    assert str(event) in caplog.text


def test_given_shares_are_left_alone() -> None:
    controller = ShareController(["cpu:0", "cpu:1"], [1, 1], measured=False)
    for _ in range(3 * WINDOW):
        record_and_review(controller, [32, 32], [0.1, 0.4])
    assert controller.shares == (0.5, 0.5)
    assert controller.events == ()


def model_under(strategy: Strategy) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="tanh")])
        model.compile("sgd", "mse")
    return model


def test_nothing_is_traced_again_when_shares_or_batches_change() -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    traces = []

    class Counted(layers.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            traces.append(x.shape)
            return x

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Counted(), layers.Dense(3)])
        model.compile("sgd", "mse")
    x, y = np.ones((26, 4), "f4"), np.ones((26, 3), "f4")
    model.fit(x, y, batch_size=8, verbose=0)
    before = len(traces)
    for shares in ([1, 3], [1, 0], [0.2, 0.8]):
        strategy.set_shares(shares)
        model.fit(x, y, batch_size=8, verbose=0)
    assert len(traces) == before


def test_every_replica_is_timed_for_its_own_samples() -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    model = model_under(strategy)
    model.fit(np.ones((64, 4), "f4"), np.ones((64, 3), "f4"), batch_size=8, verbose=0)
    first, second = strategy.share_controller.last_steps()
    assert {samples for samples, _ in first} == {6.0}
    assert {samples for samples, _ in second} == {2.0}
    assert all(seconds > 0 for _, seconds in first + second)


@pytest.mark.parametrize("shares", [[1], [1, 1, 1], [-1, 2], [0, 0], [float("nan"), 1]])
def test_impossible_shares_change_nothing(shares: list[float]) -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    with pytest.raises(PlanError):
        strategy.set_shares(shares)
    assert strategy.shares == (0.75, 0.25)


def test_shares_are_rebalanced_from_within_a_step() -> None:
    """In the graph of steps, as `fit` runs them, with times as a slow device has them."""
    controller = ShareController(["cpu:0", "cpu:1"], [1, 1], measured=True)

    @tf.function
    def steps(count: tf.Tensor) -> None:
        for _ in tf.range(count):
            samples = 32.0 * controller.variable.read_value()
            controller.record_and_review(samples, samples * [0.1, 0.4])

    steps(2 * WINDOW - 1)
    assert controller.shares == (0.5, 0.5)
    steps(1)
    assert controller.shares == pytest.approx((0.8, 0.2))
    assert controller.variable.numpy() == pytest.approx([0.8, 0.2])
    assert [event.step for event in controller.events] == [2 * WINDOW]
    steps(WINDOW)
    assert controller.variable.numpy() == pytest.approx([0.8, 0.2])


def test_shares_that_a_person_sets_while_steps_run_are_kept() -> None:
    controller = ShareController(["cpu:0", "cpu:1"], [1, 1], measured=True)

    def set_shares() -> None:
        controller.assign([0.3, 0.7])

    @tf.function
    def step() -> None:
        samples = 32.0 * controller.variable.read_value()
        tf.py_function(set_shares, [], [])
        controller.record_and_review(samples, samples * [0.1, 0.4])

    for _ in range(2 * WINDOW):
        step()
    assert controller.variable.numpy() == pytest.approx(controller.shares)
    assert controller.shares != (0.5, 0.5)


def test_a_slowed_device_gives_up_samples() -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), layers.Dense(64), layers.Dense(8)])
        model.compile("sgd", "mse")

    def work(part: int, num_samples: tf.Tensor) -> tf.Tensor:
        # Twenty times what part 0 does per sample, so that noise cannot hide it.
        rounds = tf.constant(0) if part == 0 else 20 * num_samples
        matrix = tf.eye(64)
        body = lambda k, m: (k + 1, tf.linalg.matmul(m, matrix))  # noqa: E731
        return tf.while_loop(lambda k, _: k < rounds, body, (0, matrix))[1]

    strategy.share_controller.before_part = work
    x, y = np.ones((64 * 3 * WINDOW, 64), "f4"), np.ones((64 * 3 * WINDOW, 8), "f4")
    model.fit(x, y, batch_size=64, verbose=0)
    assert strategy.shares[1] < 0.25
    assert strategy.share_controller.events


def test_loops_are_timed_in_steps_that_train() -> None:
    strategy = Strategy(devices=["cpu:1", "cpu:2"], shares=[3, 1])
    with strategy.scope():
        weight = tf.Variable(tf.ones([2]))

    def train(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x[:, None] * weight)
        weight.assign_sub(tape.gradient(loss, weight))

    step = tf.function(lambda x: strategy.run(train, args=(x,)))
    test = tf.function(
        lambda x: strategy.run(lambda batch: tf.reduce_sum(batch) * weight, args=(x,))
    )
    for _ in range(2):
        step(tf.ones([8]))
        test(tf.ones([8]))
        strategy.run(tf.function(train), args=(tf.ones([4]),))
    first, second = strategy.share_controller.last_steps()
    assert [samples for samples, _ in first] == [6, 3, 6, 3]
    assert [samples for samples, _ in second] == [2, 1, 2, 1]
    assert all(seconds > 0 for _, seconds in first + second)
