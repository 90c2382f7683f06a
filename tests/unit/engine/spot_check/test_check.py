"""A few samples of the first batch, in parts and as a whole: what the check finds."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.engine.spot_check import check, cost
from evener.engine.spot_check.check import SpotCheck, wait_for_checks
from evener.errors import EngineError, EvenerWarning

from .wrong_rules import WRONG_RULES

pytestmark = pytest.mark.usefixtures("logical_cpus")
DEVICES = ["cpu:0", "cpu:1", "cpu:2"]
X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENER_VERIFY")


def loss_of(name: str) -> Any:
    """Return a trained step whose loss a wrong rule changes, and its weight."""
    program = WRONG_RULES[name].program

    def step(weight: tf.Variable, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = program(x * weight)
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    return step


def by_distribute(name: str, **options: Any) -> list[SpotCheck]:
    weight = tf.Variable(tf.ones([4]))
    step = evener.distribute(lambda x: loss_of(name)(weight, x), devices=DEVICES, **options)
    step(X)
    wait_for_checks()
    return step.spot_checks


def by_loop(name: str) -> list[SpotCheck]:
    strategy = evener.Strategy(devices=DEVICES)
    with strategy.scope():
        weight = tf.Variable(tf.ones([4]))

    @tf.function
    def epoch(data: tf.data.Dataset) -> None:
        for x in data:
            strategy.run(loss_of(name), args=(weight, x))

    epoch(tf.data.Dataset.from_tensor_slices(np.stack([X, X])))
    wait_for_checks()
    return list(strategy.spot_checks)


class Model(keras.Model):
    """A model of one weight, with a step of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.step = loss_of(name)
        self.scale = self.add_weight(shape=(4,), initializer="ones")

    def call(self, x: Any) -> Any:
        return x * self.scale

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"loss": self.step(self.scale.value, data)}


def by_fit(name: str) -> list[SpotCheck]:
    strategy = evener.Strategy(devices=DEVICES)
    with strategy.scope():
        model = Model(name)
        model.compile()
    model.fit(tf.data.Dataset.from_tensor_slices(np.stack([X, X])), shuffle=False, verbose=0)
    wait_for_checks()
    return list(strategy.spot_checks)


DOORS = {"distribute": by_distribute, "loop": by_loop, "fit": by_fit}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", WRONG_RULES)
@pytest.mark.parametrize("door", DOORS)
def test_wrong_rules_are_warned_of(door: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [right] = DOORS[door](name)
    assert (right.state, right.reason) == ("agrees", "")
    WRONG_RULES[name].install(monkeypatch)
    with pytest.warns(EvenerWarning, match="ENG-089"):
        [wrong] = DOORS[door](name)
    assert wrong.state == "differs"
    assert wrong.num_samples == 5
