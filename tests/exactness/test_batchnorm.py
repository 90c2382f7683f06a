"""BatchNorm: over the whole batch where it says so, otherwise over each replica's share.

Unsynchronised, a replica normalises its own share; that cannot equal one device. Its moving
statistics do as well as can be: those of the shares, merged by the law of total variance
with the samples as weights, so that a BatchNorm whose inputs do not depend on the shares
learns exactly what it would learn on one device.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

from .candidates import CANDIDATE, Place, make_candidate
from .compare import assert_equal
from .harness import (
    CHANGES,
    FIVE,
    THREE,
    TWO,
    UNEVEN,
    ChangeShares,
    Layout,
    agree,
    compile_model,
    fit_model,
    start,
)
from .models import numbers, pictures, regression
from .tolerances import LAW

# What cumulative rounding makes of 16 samples.
SIZES = {2: (10, 6), 3: (9, 5, 2), 5: (6, 0, 4, 1, 5)}
MOMENTUM = 0.75
EPSILON = 1e-3


def synchronised() -> keras.Model:
    """BatchNorm in front, between, and without scale."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.BatchNormalization(momentum=0.8, synchronized=True),
            layers.Dense(6, activation="tanh"),
            layers.BatchNormalization(momentum=0.8, synchronized=True, scale=False),
            layers.Dense(1),
        ]
    )


def test_synchronised_equals_one_device() -> None:
    """Weights, moving statistics, history: with few samples, none, and changing shares."""

    def experiment(place: Place) -> dict[str, object]:
        changes = ChangeShares(place, Layout(num_devices=5, by_batch=CHANGES[5]))
        return fit_model(place, synchronised, regression(75), numbers, callbacks=[changes])

    agree(experiment, FIVE)


def test_synchronised_with_one_sample_each() -> None:
    """Shares of one sample, whose own variance is zero, and fewer samples than devices."""
    agree(
        lambda place: fit_model(
            place, synchronised, regression(17), numbers, batch_size=5, epochs=1
        ),
        Layout(num_devices=5),
    )


def test_synchronised_with_a_mask() -> None:
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


@pytest.mark.parametrize("pictured", [False, True], ids=["rows", "pictures"])
@pytest.mark.parametrize("batch", [16, 3])
def test_first_layer_learns_the_statistics_of_the_batch(batch: int, pictured: bool) -> None:
    """Unsynchronised, but its inputs are the data: one device's statistics, any shares."""
    layouts = (FIVE,) if pictured else (TWO, FIVE, Layout(num_devices=2, shares=(0, 1)))
    agree(lambda place: first_statistics(place, batch, pictured), *layouts)


def normalise(x: np.ndarray) -> np.ndarray:
    """Return a share, normalised by its own mean and variance."""
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + EPSILON)


def total_variance(shares: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the variance of all samples, from those of the shares."""
    weights = np.array([len(share) for share in shares], "float64")[:, None]
    means = np.array([share.mean(axis=0) for share in shares])
    variances = np.array([share.var(axis=0) for share in shares])
    mean = (weights * means).sum(axis=0) / weights.sum()
    within = (weights * variances).sum(axis=0) / weights.sum()
    between = (weights * (means - mean) ** 2).sum(axis=0) / weights.sum()
    return mean, within + between


@pytest.mark.skipif(CANDIDATE != "evener", reason="says what evener does with shares")
@pytest.mark.parametrize("num_devices", SIZES)
def test_unsynchronised_follows_the_law_of_total_variance(num_devices: int) -> None:
    """One step from known weights, against the law written down with NumPy."""
    x = regression(16)[0].astype("float64")
    y = regression(16)[1].astype("float64")
    rng = np.random.default_rng(11)
    kernel, head = rng.normal(size=(8, 5)), rng.normal(size=(5, 1))

    shares = [share for share in np.split(x, np.cumsum(SIZES[num_devices])[:-1]) if len(share)]
    hidden = [normalise(share) @ kernel for share in shares]
    mean_a, variance_a = total_variance(shares)
    mean_b, variance_b = total_variance(hidden)
    predicted = np.concatenate([normalise(share) for share in hidden]) @ head
    expected = {
        "mean a": mean_a * (1 - MOMENTUM),
        "variance a": MOMENTUM + variance_a * (1 - MOMENTUM),
        "mean b": mean_b * (1 - MOMENTUM),
        "variance b": MOMENTUM + variance_b * (1 - MOMENTUM),
        "loss": ((predicted - y) ** 2).mean(),
    }

    def build() -> keras.Model:
        norm = {"momentum": MOMENTUM, "epsilon": EPSILON}
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.BatchNormalization(**norm),
                layers.Dense(5, use_bias=False),
                layers.BatchNormalization(**norm),
                layers.Dense(1, use_bias=False),
            ]
        )
        model.layers[1].set_weights([kernel])
        model.layers[3].set_weights([head])
        return model

    start()
    place = make_candidate(num_devices, UNEVEN[num_devices])
    model = compile_model(
        place, build, lambda: {"loss": "mse", "optimizer": keras.optimizers.SGD(0.0)}
    )
    loss = model.train_on_batch(x.astype("float32"), y.astype("float32"))
    first, second = model.layers[0].get_weights(), model.layers[2].get_weights()
    found = {
        "mean a": first[2],
        "variance a": first[3],
        "mean b": second[2],
        "variance b": second[3],
        "loss": np.float64(loss),
    }
    assert_equal(expected, found, within=LAW, where=f"{num_devices} stand-ins")


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
