"""BatchNorm: over the whole batch, whatever its ``synchronized`` says, as on one device."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
from keras import layers

from .candidates import Place
from .harness import (
    CHANGES,
    FIVE,
    THREE,
    TWO,
    ChangeShares,
    Layout,
    agree,
    compile_model,
    fit_model,
)
from .models import numbers, pictures, regression
from .tolerances import tolerance

MOMENTUM = 0.75


def normalised(*, synchronized: bool) -> keras.Model:
    """BatchNorm in front, between, and without scale."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.BatchNormalization(momentum=0.8, synchronized=synchronized),
            layers.Dense(6, activation="tanh"),
            layers.BatchNormalization(momentum=0.8, synchronized=synchronized, scale=False),
            layers.Dense(1),
        ]
    )


@pytest.mark.parametrize("synchronized", [False, True])
def test_it_equals_one_device(synchronized: bool) -> None:
    """Weights, moving statistics, history: with few samples, none, and changing shares."""

    def experiment(place: Place) -> dict[str, object]:
        changes = ChangeShares(place, Layout(num_devices=5, by_batch=CHANGES[5]))
        build = functools.partial(normalised, synchronized=synchronized)
        return fit_model(place, build, regression(75), numbers, callbacks=[changes])

    agree(experiment, FIVE)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("synchronized", [False, True])
def test_shares_of_one_sample(synchronized: bool) -> None:
    """Their own variance is zero; and there are fewer samples than devices."""
    build = functools.partial(normalised, synchronized=synchronized)
    agree(
        lambda place: fit_model(place, build, regression(17), numbers, batch_size=5, epochs=1),
        Layout(num_devices=5),
    )


def test_with_a_mask() -> None:
    """Padding does not count; shares have different numbers of moments that do."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(43, 7, 3)).astype("float32")
    x[np.arange(7)[None, :] >= rng.integers(1, 8, size=43)[:, None]] = 0.0
    y = np.tanh(np.cumsum(x[:, :, :1], axis=1)).astype("float32")

    def build() -> keras.Model:
        norm = layers.BatchNormalization(momentum=0.8, synchronized=True)
        stack = [keras.Input((7, 3)), layers.Masking(0.0), layers.Dense(4), norm]
        return keras.Sequential([*stack, layers.Dense(1)])

    agree(lambda place: fit_model(place, build, (x, y), numbers), THREE)


def first_statistics(place: Place, batch: int, pictured: bool) -> dict[str, object]:
    """Train five steps; return the moving statistics of a BatchNorm that comes first."""
    x = pictures(5 * batch)[0] if pictured else regression(5 * batch)[0]
    y = regression(5 * batch)[1]

    def build() -> keras.Model:
        inputs = [keras.Input(x.shape[1:]), layers.BatchNormalization(momentum=MOMENTUM)]
        return keras.Sequential([*inputs, layers.Flatten(), layers.Dense(1)])

    model = compile_model(place, build, lambda: {"loss": "mse"})
    changes = ChangeShares(place, Layout(num_devices=5, by_batch=CHANGES[5]))
    model.fit(
        x,
        y,
        batch_size=batch,
        shuffle=False,
        verbose=0,
        callbacks=[changes] if batch == 16 and pictured else [],
    )
    return {"statistics": model.layers[0].get_weights()[2:]}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("pictured", [False, True], ids=["rows", "pictures"])
@pytest.mark.parametrize("batch", [16, 3])
def test_first_layer_learns_the_statistics_of_the_batch(batch: int, pictured: bool) -> None:
    """Its inputs are the data: one device's statistics, any shares."""
    layouts = (FIVE,) if pictured else (TWO, FIVE, Layout(num_devices=2, shares=(0, 1)))
    agree(lambda place: first_statistics(place, batch, pictured), *layouts)


@pytest.mark.parametrize("batch", [11, 64])
@pytest.mark.parametrize("axis", [-1, 1])
def test_statistics_of_a_large_mean_are_those_of_float64(axis: int, batch: int) -> None:
    """Sums of squares would lose all digits; so would means of few samples, rounded before."""
    rng = np.random.default_rng(6)
    x = (1e4 + rng.normal(size=(batch, 5, 3)) + np.arange(batch)[:, None, None] / batch).astype("f")
    y = rng.normal(size=(batch, 1)).astype("f")
    others = (0, 1) if axis == -1 else (0, 2)
    mean, variance = x.mean(others, dtype="float64"), x.var(others, dtype="float64")

    def experiment(place: Place) -> dict[str, object]:
        def build() -> keras.Model:
            norm = layers.BatchNormalization(axis=axis, momentum=0.0)
            return keras.Sequential([keras.Input((5, 3)), norm, layers.Flatten(), layers.Dense(1)])

        model = compile_model(place, build, lambda: {"loss": "mse"})
        model.fit(x, y, batch_size=batch, verbose=0)
        found = model.layers[0].get_weights()[2:]
        np.testing.assert_allclose(found[0], mean, rtol=1e-6)
        np.testing.assert_allclose(found[1], variance, rtol=1e-4)
        return {"statistics": found}

    within = tolerance("statistics_of_large_means")
    agree(experiment, TWO, THREE, Layout(num_devices=3, shares=(0.1, 0, 0.9)), within=within)


def test_frozen_and_inferring_batchnorm_equal_one_device() -> None:
    """With trainable=False, and in evaluate and predict, nothing depends on the shares."""

    def build() -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(5),
                layers.BatchNormalization(name="norm"),
                layers.Dense(1),
            ]
        )
        model.get_layer("norm").trainable = False
        return model

    def experiment(place: Place) -> dict[str, object]:
        x, y = regression(43)
        model = compile_model(place, build, numbers)
        fit = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        test = model.evaluate(x, y, verbose=0, return_dict=True)
        predicted = model.predict(x, verbose=0)
        return {"history": fit.history, "evaluate": test, "predict": predicted}

    agree(experiment, THREE)
