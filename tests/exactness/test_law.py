"""The law: several devices give the weights and losses that one device gives, whatever the layout.

Read this file first. All others in this folder repeat its one test for more steps and plans.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest

import evener
from evener import Plan

EPOCHS, BATCH, SAMPLES = 2, 16, 40  # 40 samples: the last batch is smaller
FIVE = [f"cpu:{k}" for k in range(5)]
STAGES = {"cpu:0": ["hidden", "norm"], "cpu:1": ["drop", "head"]}
PLANS = {
    "unequal shares": Plan.data_parallel(["cpu:0", "cpu:1"], shares=[5, 3]),
    "more devices than samples": Plan.data_parallel(FIVE, shares=[9, 9, 1, 0, 1]),
    "micro-batches": Plan.data_parallel(["cpu:0"], num_micro_batches=3),
    "owners on the host": Plan.data_parallel(["cpu:1", "cpu:2"], owners="central"),
    "pipeline": Plan.pipeline(STAGES, num_micro_batches=4),
}


def train() -> tuple[list[float], list[np.ndarray]]:
    """Train a model for one device; return its losses and weights. Nothing here knows of plans."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Dense(16, activation="tanh", name="hidden"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dropout(0.3, name="drop"),
        keras.layers.Dense(1, name="head"),
    ]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), "mse")
    x = np.random.default_rng(0).normal(size=(SAMPLES, 8)).astype("float32")
    y = np.sin(x[:, :1])
    losses = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0).history["loss"]
    return losses, model.get_weights()


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_gives_the_result_of_one_device(name: str) -> None:
    expected_losses, expected_weights = train()
    with evener.Strategy(PLANS[name]).scope():
        losses, weights = train()
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for weight, expected in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)
