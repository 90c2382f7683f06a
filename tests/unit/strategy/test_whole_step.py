"""Steps on one device in one part: timed beside what they compute."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener import Strategy
from evener.devices.names import tf_device
from evener.planner.run_times import NUM_FIRST_STEPS, run_times

X = np.random.default_rng(0).normal(size=(8 * (NUM_FIRST_STEPS + 6), 16)).astype("float32")


def one_device(name: str = "cpu:1", *, counts: bool = True) -> Strategy:
    strategy = Strategy(devices=[name])
    if counts:
        strategy.share_controller.count([tf_device(name)])
    return strategy


def model_of(strategy: Strategy, **options: object) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(32, "tanh"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((16,)), *layers])
        model.compile("adam", "mse", **options)
    return model


def weights_of(model: keras.Model) -> list[np.ndarray]:
    return [weight.numpy() for weight in model.variables]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}], ids=str)
def test_steps_of_fit_are_timed_and_compute_the_same(
    options: dict[str, object], logical_cpus: tuple[str, ...]
) -> None:
    timed, plain = one_device(), one_device(counts=False)
    found = []
    for strategy in (timed, plain):
        model = model_of(strategy, **options)
        model.fit(X, X[:, :1], batch_size=8, verbose=0)
        model.evaluate(X, X[:, :1], batch_size=8, verbose=0)
        model.predict(X, verbose=0)
        found.append(weights_of(model))
    for wanted, got in zip(*found, strict=True):
        np.testing.assert_array_equal(wanted, got)
    records = timed.share_controller.step_records()
    assert [record.samples for record in records] == [(8,)] * 6
    assert timed.share_controller.total_samples() == (len(X),)
    begins = [record.began for record in records]
    assert begins == sorted(begins)
    times = run_times(records, ["cpu:1"], {}, with_updates=True)
    assert times is not None
    assert 0 < times.busy_seconds["cpu:1"] < times.step_seconds


def test_a_step_that_xla_compiles_is_not_timed(logical_cpus: tuple[str, ...]) -> None:
    strategy = one_device("cpu:0")
    model = model_of(strategy, jit_compile=True)
    model.fit(X, X[:, :1], batch_size=8, verbose=0)
    assert strategy.share_controller.step_records() == []


def test_a_step_lasts_at_least_as_long_as_what_it_computes(logical_cpus: tuple[str, ...]) -> None:
    strategy = one_device()
    with strategy.scope():
        weight = tf.Variable(tf.eye(400) / 2)

    def step(x: tf.Tensor, rounds: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for _ in tf.range(rounds):
                x = tf.matmul(x, weight)
            loss = tf.reduce_sum(x)
        (gradient,) = tape.gradient(loss, [weight])
        weight.assign_sub(1e-9 * gradient)
        return loss

    @tf.function
    def run(x: tf.Tensor, rounds: tf.Tensor) -> tf.Tensor:
        return strategy.run(step, args=(x, rounds))

    seconds = []
    for rounds in (1, 40):
        for _ in range(NUM_FIRST_STEPS + 5):
            run(tf.ones([400, 400]), tf.constant(rounds))
        last = strategy.share_controller.step_records()[-5:]
        seconds.append(min(record.busy_seconds[0] for record in last))
    assert seconds[1] > 3 * seconds[0] > 0


def test_steps_without_training_or_batch_are_not_timed(logical_cpus: tuple[str, ...]) -> None:
    strategy = one_device()
    with strategy.scope():
        weight = tf.Variable([1.0])
        count = tf.Variable(0.0, trainable=False)

    @tf.function
    def read(x: tf.Tensor) -> tf.Tensor:
        return strategy.run(lambda x: count.assign_add(tf.reduce_sum(weight * x)), args=(x,))

    @tf.function
    def without_batch() -> tf.Tensor:
        return strategy.run(lambda: weight.assign_add([1.0]))

    for _ in range(NUM_FIRST_STEPS + 2):
        read(tf.ones([4]))
        without_batch()
    assert strategy.share_controller.total_samples() == (0,)
    assert strategy.share_controller.step_records() == []


def test_a_step_that_is_a_traced_function_is_timed(logical_cpus: tuple[str, ...]) -> None:
    strategy = one_device()
    with strategy.scope():
        weight = tf.Variable([1.0])
    inner = tf.function(lambda x: weight.assign_sub([tf.reduce_mean(x)]))

    @tf.function
    def run(x: tf.Tensor) -> tf.Tensor:
        return strategy.run(inner, args=(x,))

    for _ in range(NUM_FIRST_STEPS + 2):
        run(tf.ones([4]))
    assert [record.samples for record in strategy.share_controller.step_records()] == [(4,), (4,)]
