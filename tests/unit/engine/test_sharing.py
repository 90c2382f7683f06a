"""Shares change without a new trace, and follow the measured times."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import PlanError, Strategy
from evener.engine.sharing import WINDOW, Sharing


def record(sharing: Sharing, samples: list[float], seconds: list[float]) -> None:
    sharing.record(tf.constant(samples, tf.float64), tf.constant(seconds, tf.float64))


def test_the_ring_keeps_the_last_steps_in_order() -> None:
    sharing = Sharing(["cpu:0", "cpu:1"], [1, 1], measured=True)
    for step in range(WINDOW + 3):
        record(sharing, [step, 2 * step], [0.1, 0.2])
    first, second = sharing.last_steps()
    assert [samples for samples, _ in first] == list(range(3, WINDOW + 3))
    assert second[0] == (6.0, 0.2)


def test_shares_are_evened_by_measured_times(caplog: pytest.LogCaptureFixture) -> None:
    sharing = Sharing(["cpu:0", "cpu:1"], [1, 1], measured=True)
    with caplog.at_level(logging.INFO, logger="evener"):
        for _ in range(WINDOW):
            record(sharing, [32, 32], [0.1, 0.4])
            sharing.review(1)
    assert sharing.shares == pytest.approx((0.8, 0.2))
    assert sharing.variable.numpy() == pytest.approx([0.8, 0.2])
    (event,) = sharing.events
    assert event.step == WINDOW
    assert str(event) in caplog.text


def test_given_shares_are_left_alone() -> None:
    sharing = Sharing(["cpu:0", "cpu:1"], [1, 1], measured=False)
    for _ in range(3 * WINDOW):
        record(sharing, [32, 32], [0.1, 0.4])
        sharing.review(1)
    assert sharing.shares == (0.5, 0.5)
    assert sharing.events == ()


def model_under(strategy: Strategy) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="tanh")])
        model.compile("sgd", "mse")
    return model


def test_nothing_is_traced_again_when_shares_or_batches_change() -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    model = model_under(strategy)
    x, y = np.ones((26, 4), "f4"), np.ones((26, 3), "f4")
    model.fit(x, y, batch_size=8, verbose=0)
    functions = model.train_function.steps.functions
    traces = functions.train.experimental_get_tracing_count()
    for shares in ([1, 3], [1, 0], [0.2, 0.8]):
        strategy.set_shares(shares)
        model.fit(x, y, batch_size=8, verbose=0)
    assert functions.train.experimental_get_tracing_count() == traces == 1


def test_every_replica_is_timed_for_its_own_samples() -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    model = model_under(strategy)
    model.fit(np.ones((64, 4), "f4"), np.ones((64, 3), "f4"), batch_size=8, verbose=0)
    first, second = strategy.sharing.last_steps()
    assert {samples for samples, _ in first} == {6.0}
    assert {samples for samples, _ in second} == {2.0}
    assert all(seconds > 0 for _, seconds in first + second)


@pytest.mark.parametrize("shares", [[1], [1, 1, 1], [-1, 2], [0, 0], [float("nan"), 1]])
def test_impossible_shares_change_nothing(shares: list[float]) -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    with pytest.raises(PlanError):
        strategy.set_shares(shares)
    assert strategy.shares == (0.75, 0.25)


def test_a_slowed_replica_gives_up_samples() -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), layers.Dense(64), layers.Dense(8)])
        model.compile("sgd", "mse")
    model.make_train_function()

    def work(replica: int, num_samples: tf.Tensor) -> tf.Tensor:
        # Twenty times what replica 0 does per sample, so that noise cannot hide it.
        rounds = tf.constant(0) if replica == 0 else 20 * num_samples
        matrix = tf.eye(64)
        body = lambda k, m: (k + 1, tf.linalg.matmul(m, matrix))  # noqa: E731
        return tf.while_loop(lambda k, _: k < rounds, body, (0, matrix))[1]

    x, y = np.ones((64 * 3 * WINDOW, 64), "f4"), np.ones((64 * 3 * WINDOW, 8), "f4")
    model.build((None, 64))
    model.train_on_batch(x[:1], y[:1])
    program = model.train_function.steps.program
    program.before_replica = work
    model.make_train_function(force=True)
    model.fit(x, y, batch_size=64, verbose=0)
    assert strategy.shares[1] < 0.25
