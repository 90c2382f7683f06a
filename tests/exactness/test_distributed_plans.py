"""Steps of one's own in stages and micro-batches, by `evener.distribute`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener
from evener import Plan, PlanError

from .harness import start
from .models import sequential

PLANS = {
    "stages": Plan.pipeline({"cpu:0": "a*", "cpu:1": "b*"}, num_micro_batches=4, in_flight=2),
    "in turns": Plan.pipeline(
        [("cpu:1", "a0"), ("cpu:0", "a1"), ("cpu:1", "b0"), ("cpu:0", "b1")], num_micro_batches=3
    ),
    "again": Plan.pipeline({"cpu:2": "*"}, num_micro_batches=20, recompute=["a*"]),
}


def trained(wrap: Callable[[Any], Any]) -> tuple[list[float], list[np.ndarray]]:
    """Return the losses and weights of a step that no rule about losses gets right."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = sequential(
        (8,),
        layers.Dense(16, "tanh", name="a0"),
        layers.BatchNormalization(name="a1"),
        layers.Dropout(0.5, name="b0"),
        layers.Dense(3, name="b1"),
    )
    optimizer = keras.optimizers.Adam(epsilon=1e-3)
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.sqrt(tf.reduce_mean(tf.square(model(x, training=True) - y)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    function = wrap(step)
    x = np.random.default_rng(0).normal(size=(13, 8)).astype("float32")
    batches = [(tf.constant(x[:n]), tf.constant(x[:n, :3])) for n in (13, 13, 5)]
    return [float(function(*batch)) for batch in batches], model.get_weights()


@pytest.mark.parametrize("name", PLANS)
def test_a_step_under_a_plan_is_that_of_one_device(name: str) -> None:
    start()
    losses, weights = trained(tf.function)
    cut_losses, cut_weights = trained(evener.distribute(plan=PLANS[name]))
    np.testing.assert_allclose(losses, cut_losses, rtol=1e-5)
    for wanted, got in zip(weights, cut_weights, strict=True):
        np.testing.assert_allclose(wanted, got, atol=1e-5)


def test_a_plan_excludes_devices_and_shares() -> None:
    with pytest.raises(PlanError, match="PLAN-051"):
        evener.distribute(lambda x: x, plan=PLANS["stages"], shares=[1, 1])
