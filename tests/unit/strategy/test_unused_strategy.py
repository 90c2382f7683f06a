"""ENG-088: a model trains outside of every scope, and a strategy is not used."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener import EvenerWarning, Plan, Strategy

X = np.ones((8, 4), "float32")
Y = np.ones((8, 1), "float32")
DEVICES = ["cpu:0", "cpu:1"]


def model_with(**settings: object) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="outside")
    model.compile("sgd", "mse", **settings)
    return model


def codes(train: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    return [str(each.message)[1:8] for each in caught if issubclass(each.category, EvenerWarning)]


def test_it_names_the_model_the_devices_and_the_line() -> None:
    strategy = Strategy(devices=DEVICES)
    model = model_with()
    with pytest.warns(EvenerWarning, match="ENG-088") as caught:
        model.fit(X, Y, verbose=0)
    assert "'outside'" in str(caught[0].message) and "cpu:0, cpu:1" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert codes(lambda: model_with().fit(X, Y, verbose=0)) == [], "once for a strategy"
    assert strategy.share_controller.num_steps == 0


@pytest.mark.parametrize(
    "train",
    [
        lambda: model_with().train_on_batch(X, Y),
        lambda: model_with(run_eagerly=True).fit(X, Y, verbose=0),
    ],
    ids=["train_on_batch", "eagerly"],
)
def test_every_way_to_train_is_seen(train: Callable[[], object]) -> None:
    strategy = Strategy(Plan.pipeline({"cpu:0": "dense", "cpu:1": "head"}))
    assert codes(train) == ["ENG-088"]
    del strategy


def fit_in_scope(strategy: Strategy) -> None:
    model = model_with()
    with strategy.scope():
        model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0)
    assert strategy.share_controller.num_steps == 1


def fit_beside_another_model(strategy: Strategy) -> None:
    with strategy.scope():
        used = keras.Sequential([keras.layers.Dense(1)])
    model_with().fit(X, Y, verbose=0)
    del used


def fit_after_a_loop(strategy: Strategy) -> None:
    strategy.run(tf.function(lambda x: x * 2.0), args=(X,))
    model_with().fit(X, Y, verbose=0)


def fit_under_another_strategy(_: Strategy) -> None:
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = model_with()
    model.fit(X, Y, verbose=0)


def evaluate_and_predict(_: Strategy) -> None:
    model = model_with()
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)


def fit_beside_one_device(_: Strategy) -> None:
    model_with().fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("train", "devices"),
    [
        (fit_in_scope, DEVICES),
        (fit_beside_another_model, DEVICES),
        (fit_after_a_loop, DEVICES),
        (fit_under_another_strategy, DEVICES),
        (evaluate_and_predict, DEVICES),
        # That is no loss.
        (fit_beside_one_device, ["cpu:1"]),
    ],
)
def test_it_is_silent(train: Callable[[Strategy], None], devices: list[str]) -> None:
    strategy = Strategy(devices=devices)
    assert codes(lambda: train(strategy)) == []


def test_a_strategy_that_is_gone_is_not_missed() -> None:
    strategy = Strategy(devices=DEVICES)
    strategy.itself = [strategy]  # Only the collection of garbage frees it.
    del strategy
    assert codes(lambda: model_with().fit(X, Y, verbose=0)) == []
