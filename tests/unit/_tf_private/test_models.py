from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import Strategy
from evener._tf_private.models import build_for_step, build_from_specs

BATCH = (keras.KerasTensor((None, 3)), keras.KerasTensor((None, 1)))


@pytest.mark.usefixtures("logical_cpus")
def test_everything_that_a_step_uses_is_made() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    build_from_specs(model, BATCH)
    assert model.built
    assert model.optimizer.built
    assert len(model.metrics_variables) == 4


@pytest.mark.usefixtures("logical_cpus")
def test_what_cannot_be_built_is_left_to_the_step() -> None:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    build_from_specs(model, BATCH)
    assert model.built


@pytest.fixture
def strategy() -> Strategy:
    return Strategy(devices=["cpu:0", "cpu:1"], shares="even")


def test_a_model_under_a_strategy_is_built_for_its_step(strategy: Strategy) -> None:
    with strategy.scope():
        model = keras.Sequential([layers.Dense(2)])
        model.compile("adam", "mse")
    build_for_step(model, (tf.ones([4, 3]), tf.ones([4, 2])))
    assert model.built and model.optimizer.built


class CountedSGD(keras.optimizers.SGD):
    """Counts the updates that are traced."""

    num_updates = 0

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, rate: tf.Tensor) -> None:
        self.num_updates += 1
        super().update_step(gradient, variable, rate)


@pytest.mark.parametrize("calls", ["train_on_batch", "fit"])
def test_the_first_step_is_traced_once(strategy: Strategy, calls: str) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), layers.Dense(2, use_bias=False)])
        optimizer = CountedSGD(0.1, momentum=0.9)
        model.compile(optimizer, "mse", metrics=["mae"])
    x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    if calls == "fit":
        model.fit(x, y, batch_size=4, verbose=0)
    else:
        model.train_on_batch(x, y)
        model.train_on_batch(x, y)
    assert optimizer.num_updates == 1
