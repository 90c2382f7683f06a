"""Dropout and its like: the masks of one device, whatever the shares are.

The masks are read from the gradient of one layer: every input is one, sample k has the weight
2**k in the loss, so the binary digits of a kernel's gradient are the samples' masks.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
from keras import layers, ops

from .candidates import CANDIDATE, OneDevice, Place, make_candidate
from .harness import FIVE, THREE, TWO, Layout, agree, compile_model, fit_again, start
from .models import numbers, regression, sequential

WIDTH, SAMPLES = 64, 8
ONE = Layout(num_devices=1)
LAYOUTS = (ONE, TWO, Layout(num_devices=2), THREE, Layout(num_devices=5))
# Micro-batches and other strategies draw masks of their own.
as_one_device = pytest.mark.skipif(
    CANDIDATE not in ("evener", "plain"), reason="says what evener does without micro-batches"
)


def weighed(y_true: object, y_pred: object) -> object:
    return ops.sum(y_true * y_pred)


def mask_model(place: Place, seed: int | None = None) -> keras.Model:
    """Return a model whose kernel takes up the masks of one step."""

    def build() -> keras.Model:
        return sequential(
            (WIDTH,),
            layers.Dropout(0.5, seed=seed),
            layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        )

    return compile_model(
        place, build, lambda: {"loss": weighed, "optimizer": keras.optimizers.SGD(1.0)}
    )


def masks_of_step(model: keras.Model) -> np.ndarray:
    """Train one step and return the mask of every sample, an array of SAMPLES x WIDTH."""
    before = model.get_weights()[0]
    weights = (2.0 ** np.arange(SAMPLES)).astype("float32").reshape(SAMPLES, 1)
    model.train_on_batch(np.ones((SAMPLES, WIDTH), "float32"), weights)
    digits = ((before - model.get_weights()[0]) / 2.0).round().astype(int).reshape(WIDTH)
    return ((digits[None, :] >> np.arange(SAMPLES)[:, None]) & 1).astype(bool)


def masks(layout: Layout | None) -> list[np.ndarray]:
    """Return the masks of three steps under a layout, or on one device without evener."""
    start()
    place = OneDevice() if layout is None else make_candidate(layout.num_devices, layout.shares)
    model = mask_model(place)
    return [masks_of_step(model) for _ in range(3)]


def test_reading_masks_from_gradients() -> None:
    """The reading is right: it gives back the very mask that plain Keras draws."""
    start()
    model = mask_model(OneDevice(), seed=5)
    drawn = layers.Dropout(0.5, seed=5)(np.ones((SAMPLES, WIDTH), "float32"), training=True)
    assert np.array_equal(masks_of_step(model), np.asarray(drawn) > 0)


@as_one_device
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_masks_are_those_of_one_device(layout: Layout) -> None:
    """Bit by bit, in three steps, which have unlike masks."""
    expected, found = masks(None), masks(layout)
    for first, second in zip(expected, found, strict=True):
        np.testing.assert_array_equal(first, second)
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert 0.3 < (found[first] == found[second]).mean() < 0.7


def dropping() -> keras.Model:
    return sequential(
        (8,),
        layers.GaussianNoise(0.1),
        layers.Dense(12, activation="tanh"),
        layers.Dropout(0.3),
        layers.Dense(8, activation="tanh"),
        layers.Dropout(0.3),
        layers.Dense(1),
    )


def trained(layout: Layout, seed: int) -> list[np.ndarray]:
    start(seed)
    place = make_candidate(layout.num_devices, layout.shares)
    model = compile_model(place, dropping, numbers)
    fit_again(place, model, regression(75))
    return model.get_weights()


@pytest.mark.parametrize("layout", [ONE, THREE], ids=str)
def test_training_is_reproducible(layout: Layout) -> None:
    """Two runs from one seed end with equal weights; another seed ends elsewhere."""
    once, again, other = trained(layout, 1), trained(layout, 1), trained(layout, 2)
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(once, other, strict=True))


@as_one_device
def test_training_is_that_of_one_device() -> None:
    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, dropping, numbers)
        return fit_again(place, model, regression(75))

    agree(experiment, ONE, THREE, FIVE)


def test_nothing_is_random_outside_training() -> None:
    """evaluate and predict equal one device on any number of replicas."""

    def experiment(place: Place) -> dict[str, object]:
        x, y = regression(43)
        model = compile_model(place, dropping, numbers)
        test = model.evaluate(x, y, verbose=0, return_dict=True)
        return {"evaluate": test, "predict": model.predict(x, verbose=0)}

    agree(experiment, THREE)


class OwnNoise(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(13)

    def call(self, x: object, training: bool = False) -> object:
        return x + keras.random.normal(ops.shape(x), seed=self.seeds) if training else x


class Predictions(keras.metrics.Metric):
    """Keeps the predictions of the last batch, so that noise can be seen."""

    def __init__(self) -> None:
        super().__init__(name="predictions")
        self.last = self.add_weight(shape=(SAMPLES, WIDTH), initializer="zeros", name="last")

    def update_state(self, y_true: object, y_pred: object, sample_weight: object = None) -> None:
        self.last.assign(y_pred)

    def result(self) -> object:
        return ops.mean(self.last)


NOISES: dict[str, Callable[[], keras.layers.Layer]] = {
    "GaussianNoise": lambda: layers.GaussianNoise(1.0),
    "GaussianDropout": lambda: layers.GaussianDropout(0.5),
    "OwnNoise": OwnNoise,
}


@as_one_device
@pytest.mark.parametrize("name", NOISES)
def test_other_random_layers(name: str) -> None:
    """Noise is that of one device, and differs from step to step."""

    def build() -> keras.Model:
        scale = layers.EinsumDense("bd,d->bd", WIDTH, kernel_initializer="ones")
        return keras.Sequential([keras.Input((WIDTH,)), NOISES[name](), scale])

    def experiment(place: Place) -> dict[str, object]:
        metric = Predictions()

        def compiled() -> dict[str, object]:
            return {"loss": "mse", "optimizer": keras.optimizers.SGD(0.0), "metrics": [metric]}

        model = compile_model(place, build, compiled)
        x = np.ones((SAMPLES, WIDTH), "float32")
        steps = []
        for _ in range(2):
            model.train_on_batch(x, x)
            steps.append(metric.last.numpy() - 1.0)
        assert np.std(steps[0]) > 0.5
        assert abs(np.corrcoef(steps[0].reshape(-1), steps[1].reshape(-1))[0, 1]) < 0.25
        return {"noise": steps}

    agree(experiment, TWO, FIVE)
