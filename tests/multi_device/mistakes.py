"""Shared by the tests of bad input: a small model, its strategies, and the form of an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import keras
import numpy as np
import pytest
from keras import layers

from evener import EvenerError, Plan, Strategy
from exactness.compare import assert_equal, state_of

TWO = ("cpu:0", "cpu:1")


def one_replica(devices: Sequence[str] = TWO) -> Strategy:
    """Return a strategy of one replica, which is all devices."""
    return Strategy(devices=devices, shares="even")


def in_micro_batches(devices: Sequence[str] = TWO) -> Strategy:
    """Return a strategy with two micro-batches on every device."""
    plan = Plan.data_parallel(list(devices))
    replicas = [dataclasses.replace(replica, num_micro_batches=2) for replica in plan.replicas]
    return Strategy(dataclasses.replace(plan, replicas=tuple(replicas)))


def small() -> keras.Model:
    """Two dense layers."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(5), layers.Dense(1, name="head")])


def compiled_under(strategy: Strategy, build: Callable[[], keras.Model] = small) -> keras.Model:
    """Build and compile under a strategy."""
    with strategy.scope():
        model = build()
        model.compile("adam", "mse", metrics=["mae"])
    return model


def plain_like(
    model: keras.Model,
    build: Callable[[], keras.Model] = small,
    optimizer: str | keras.optimizers.Optimizer = "adam",
) -> keras.Model:
    """Build and compile without a strategy, with the weights of another model."""
    reference = build()
    reference.compile(optimizer, "mse", metrics=["mae"])
    reference.set_weights(model.get_weights())
    return reference


def acts_as_plain_keras(
    model: keras.Model, reference: keras.Model, act: Callable[[keras.Model], object]
) -> None:
    """Do the same with both; what it returns, weights and steps must agree."""
    ours, plain = ({"result": act(trained), **state_of(trained)} for trained in (model, reference))
    assert_equal(plain, ours, within=1e-5, where="two devices")


def data(num_samples: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of four numbers and their sums."""
    x = np.random.default_rng(0).normal(size=(num_samples, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def assert_house_form(error: EvenerError, code: str, *names: str) -> None:
    """Check the code, the three lines, and that the text names what it is about."""
    text = str(error)
    assert error.code.startswith(code), text
    assert text.startswith(f"[{error.code}] ")
    assert "\nWhy: " in text
    assert "\nFix: " in text
    for name in names:
        assert name in text, f"{name!r} is not named in:\n{text}"


def refused(model: keras.Model, act: Callable[[], object], code: str, *names: str) -> EvenerError:
    """Check that an act is refused, and that it changed neither weights nor steps."""
    before = model.get_weights()
    steps = int(model.optimizer.iterations.numpy()) if model.optimizer else 0
    with pytest.raises(EvenerError) as caught:
        act()
    assert_house_form(caught.value, code, *names)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert steps == (int(model.optimizer.iterations.numpy()) if model.optimizer else 0)
    return caught.value
