"""Loops over the data inside of the traced function: each batch is a step on all devices."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.errors import EvenerWarning

from .harness import start

Epoch = Callable[[Any], Any]


class Trained:
    """A model with dropout, what trains it, and its data, whose last batch is smaller."""

    def __init__(self) -> None:
        hidden = [keras.layers.Dense(12, activation="tanh"), keras.layers.Dropout(0.3)]
        self.model = keras.Sequential([keras.Input((8,)), *hidden, keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        self.metric = keras.metrics.Mean()
        x = np.random.default_rng(0).normal(size=(39, 8)).astype("float32")
        self.data = tf.data.Dataset.from_tensor_slices((x, np.sin(x[:, :1]))).batch(16)

    def step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            # No mean over the batch, so that a split that is not told apart is seen.
            loss = tf.sqrt(tf.reduce_sum(tf.square(self.model(x, training=True) - y)))
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.metric.update_state(loss)
        return loss


def over_batches(trained: Trained) -> Epoch:
    def epoch(data: Any) -> Any:
        total, worst = 0.0, tf.zeros([1])
        for x, y in data:
            loss = trained.step(x, y)
            total += loss
            worst = tf.maximum(worst, loss)
        return total, worst

    return epoch


def with_a_traced_step(trained: Trained) -> Epoch:
    step = tf.function(trained.step)

    def epoch(data: Any) -> Any:
        for x, y in data:
            step(x, y)
        return trained.metric.result()

    return epoch


def until_it_is_good(trained: Trained) -> Epoch:
    def epoch(data: Any) -> Any:
        total = tf.constant(0.0)
        for x, y in data:
            if total > 4.0:
                break
            total += trained.step(x, y)
        return total

    return epoch


def distributed(epoch: Epoch, strategy: evener.Strategy) -> Epoch:
    del strategy
    return evener.distribute(tf.function(epoch), devices="cpu:2", shares=[3, 1])


def run(epoch: Epoch, strategy: evener.Strategy) -> Epoch:
    traced = tf.function(epoch)
    return lambda data: strategy.run(traced, args=(data,))


def run_inside(epoch: Epoch, strategy: evener.Strategy) -> Epoch:
    return tf.function(lambda data: strategy.run(epoch, args=(data,)))


@pytest.mark.filterwarnings("ignore:.*ENG-093")
@pytest.mark.parametrize("make", [over_batches, with_a_traced_step, until_it_is_good])
@pytest.mark.parametrize("spread", [distributed, run, run_inside])
@pytest.mark.usefixtures("logical_cpus")
def test_an_epoch_in_one_function(
    make: Callable[[Trained], Epoch], spread: Callable[[Epoch, evener.Strategy], Epoch]
) -> None:
    found: list[list[np.ndarray]] = []
    strategy = evener.Strategy(devices="cpu:2", shares=[3, 1])
    for is_spread in (False, True):
        start()
        with strategy.scope() if is_spread else contextlib.nullcontext():
            trained = Trained()
        epoch = make(trained)
        call = spread(epoch, strategy) if is_spread else tf.function(epoch)
        results = [call(trained.data), call(iter(trained.data)), call(trained.data)]
        state = [*trained.model.variables, *trained.optimizer.variables, trained.metric.result()]
        found.append([np.asarray(value) for value in tf.nest.flatten([results, state])])
        if is_spread:
            several: Any = call if spread is distributed else strategy
            # With `break`, the step is in a condition, which is computed once.
            assert several.report().num_operations or make is until_it_is_good
    for expected, value in zip(*found, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def by_next(trained: Trained) -> Epoch:
    def epoch(data: Any) -> Any:
        batches = iter(data)
        for _ in tf.range(2):
            x, y = next(batches)
            trained.step(x, y)
        return trained.metric.result()

    return epoch


ON_ONE_DEVICE: dict[Any, str] = {until_it_is_good: "condition", by_next: "next"}


@pytest.mark.covering(1)
@pytest.mark.parametrize("make", [over_batches, until_it_is_good, by_next])
@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.usefixtures("logical_cpus")
def test_a_loop_that_leaves_the_training_to_one_device_warns_once(
    make: Callable[[Trained], Epoch], is_inside: bool
) -> None:
    start()
    trained = Trained()
    step: Any = evener.distribute(make(trained), devices="cpu:2", shares=[3, 1])
    call = tf.function(lambda data: step(data)) if is_inside else step
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            call(trained.data)
    texts = [str(warning.message) for warning in caught if "ENG-093" in str(warning.message)]
    assert len(texts) == (make in ON_ONE_DEVICE)
    assert not texts or f"At: {__file__}" in texts[0]
    assert not texts or ON_ONE_DEVICE[make] in texts[0]


def twice(trained: Trained, batches: Any) -> Any:
    x, y = batches.get_next()
    more, labels = next(batches)
    return trained.step(tf.concat([x, more], 0), tf.concat([y, labels], 0))


def behind_a_write(trained: Trained, batches: Any) -> Any:
    """The write must not be made twice, and the batch is taken behind it."""
    trained.metric.update_state(2.0)
    return trained.step(*next(batches))


def sometimes(trained: Trained, batches: Any) -> Any:
    if trained.metric.result() < 4.0:
        trained.step(*next(batches))
    return trained.metric.result()


@pytest.mark.filterwarnings("ignore:.*ENG-093")
@pytest.mark.parametrize(
    ("take", "num_steps", "is_split"),
    [
        (lambda trained, batches: trained.step(*next(batches)), 6, True),
        (twice, 3, True),
        (behind_a_write, 6, False),
        (sometimes, 3, False),
    ],
)
@pytest.mark.usefixtures("logical_cpus")
def test_a_step_that_takes_its_batch_from_an_iterator(
    take: Callable[[Trained, Any], Any], num_steps: int, is_split: bool
) -> None:
    """The last batch is smaller; then the iterator is at its end."""
    found: list[list[np.ndarray]] = []
    for is_spread in (False, True):
        start()
        trained = Trained()
        batches = iter(trained.data.repeat(2))

        def step(trained: Trained = trained, batches: Any = batches) -> Any:
            return take(trained, batches)

        several: Any = evener.distribute(step, devices="cpu:3", shares=[5, 3, 2])
        call = several if is_spread else tf.function(step)
        results = [call() for _ in range(num_steps)]
        state = [*results, *trained.model.variables, *trained.optimizer.variables]
        found.append([np.asarray(value) for value in [*state, trained.metric.result()]])
        if take is not sometimes:
            with pytest.raises(tf.errors.OutOfRangeError):
                call()
    assert bool(several.report().num_operations) == is_split
    for expected, value in zip(*found, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("logical_cpus")
def test_a_loop_that_does_not_train_does_not_warn() -> None:
    step: Any = evener.distribute(
        lambda data: data.reduce(0.0, lambda total, x: total + tf.reduce_sum(x)), devices="cpu:2"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(step(tf.data.Dataset.from_tensor_slices(tf.ones([6])).batch(2))) == 6.0


@pytest.mark.usefixtures("logical_cpus")
def test_a_step_without_arguments_that_loops_over_its_data() -> None:
    data = tf.data.Dataset.from_tensor_slices(tf.random.stateless_normal([8, 3], (1, 2)))
    data = data.batch(4, drop_remainder=True)
    weights = [tf.Variable(tf.ones([3, 1])) for _ in range(2)]

    def step(weight: tf.Variable) -> Any:
        before = tf.zeros([4, 3])
        for _ in tf.range(2):
            for x in data.take(2):
                with tf.GradientTape() as tape:
                    loss = tf.sqrt(tf.reduce_sum(tf.square((x + before) @ weight - 1.0)))
                gradient: Any = tape.gradient(loss, weight)
                weight.assign_sub(0.1 * gradient)
                before = x
        return before

    plain = tf.function(lambda: step(weights[0]))
    several: Any = evener.distribute(lambda: step(weights[1]), devices="cpu:2", shares=[3, 1])
    # Four rows are too few to split what reads them.
    with pytest.warns(EvenerWarning, match="behind what is gathered: AddV2"):
        several()
    plain()
    np.testing.assert_allclose(several(), plain(), rtol=1e-6)
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-6)
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-6)
    assert several.report().num_operations
