"""The strategy that hands over the first step of a program instead of running it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener.profile import ModelCosts
from evener.profiler.layer_costs import layer_costs
from evener.profiler.profile import costing_strategy
from unit.profiler.models import costs_of, dense, sequence


class StepFoundError(Exception):
    """Ends a program at its first training step."""


def samples_of_first_step(train: Any) -> int | None:
    """Return the samples of the first step of a program that is called in the strategy's scope."""
    found: list[int | None] = []

    def on_step(traced: Any, num_samples: int | None) -> None:
        assert traced.trains
        found.append(num_samples)
        raise StepFoundError

    with costing_strategy("cpu:0", on_step).scope(), pytest.raises(StepFoundError):
        train()
    return found[0]


def compiled() -> keras.Model:
    model = sequence((4,), dense(2, "a"), dense(1, "b"))
    model.compile("sgd", "mse")
    return model


X, Y = np.ones((40, 4), "float32"), np.ones((40, 1), "float32")


def test_a_smaller_last_batch_hides_no_size() -> None:
    assert samples_of_first_step(lambda: compiled().fit(X, Y, batch_size=16, verbose=0)) == 16
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(12)
    assert samples_of_first_step(lambda: compiled().fit(data, verbose=0, shuffle=False)) == 12


def test_the_data_of_the_step_count_and_not_the_last_that_was_made() -> None:
    def train() -> None:
        model = compiled()
        model.predict(X[:, :4], batch_size=7, verbose=0)
        strategy = tf.distribute.get_strategy()
        strategy.experimental_distribute_dataset(tf.data.Dataset.range(9).batch(5))
        model.fit(X, Y, batch_size=16, verbose=0)

    assert samples_of_first_step(train) == 16


def test_data_of_which_only_the_shapes_fit_leave_the_size_open() -> None:
    """A set for evaluation has the same shapes, and often other batches."""

    def train(size: int) -> None:
        strategy = tf.distribute.get_strategy()
        model = compiled()
        pairs = tf.data.Dataset.from_tensor_slices((X, Y))
        given = strategy.experimental_distribute_dataset(pairs.batch(16))
        strategy.experimental_distribute_dataset(pairs.batch(size))
        tf.function(lambda rows: strategy.run(model.train_step, args=(next(rows),)))(iter(given))

    assert samples_of_first_step(lambda: train(12)) is None
    assert samples_of_first_step(lambda: train(16)) == 16


def test_a_model_may_have_no_call() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = compiled()

        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.inner(data)))
            weights = self.inner.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    def train() -> None:
        model = Own()
        model.compile("sgd")
        model.fit(X, batch_size=20, verbose=0)

    assert samples_of_first_step(train) == 20


@pytest.mark.parametrize("clips", [{}, {"global_clipnorm": 1.0}])
def test_an_update_belongs_to_its_layer_as_without_a_strategy(clips: dict[str, float]) -> None:
    found: list[ModelCosts] = []

    def on_step(traced: Any, num_samples: int | None) -> None:
        del num_samples
        found.append(layer_costs(traced))
        raise StepFoundError

    def model() -> keras.Model:
        return sequence((4,), dense(4, "a"), dense(4, "b"), dense(1, "c"))

    with costing_strategy("cpu:0", on_step).scope():
        trained = model()
        trained.compile(keras.optimizers.Adam(**clips), "mse")
        with pytest.raises(StepFoundError):
            trained.fit(X, Y, batch_size=16, verbose=0)
    expected = costs_of(model(), (1,), optimizer=keras.optimizers.Adam(**clips))
    assert found[0].updates_wait == expected.updates_wait == bool(clips)
    assert [layer.update_bytes for layer in found[0].layers] == [
        layer.update_bytes for layer in expected.layers
    ]
    assert all(layer.update_bytes for layer in expected.layers)
