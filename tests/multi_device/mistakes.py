"""What the tests of bad input share: a small model, and how an error must look."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
from keras import layers

from evener import EvenerError, Strategy

TWO = ("cpu:0", "cpu:1")


def small() -> keras.Model:
    """Two dense layers."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(5), layers.Dense(1, name="head")])


def compiled_under(strategy: Strategy, build: Callable[[], keras.Model] = small) -> keras.Model:
    """Build and compile under a strategy."""
    with strategy.scope():
        model = build()
        model.compile("adam", "mse", metrics=["mae"])
    return model


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
