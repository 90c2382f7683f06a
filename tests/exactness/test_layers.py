"""The law for kinds of models and layers that the six models do not hold."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

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
    fit_again,
    fit_model,
    sgd,
)
from .models import classes, cnn, mlp, numbers, pairs, pictures, regression, tabular
from .tolerances import tolerance


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_compiled_by_xla(name: str) -> None:
    """jit_compile=True on both sides; shares change between the steps."""
    build, data = {"mlp": (mlp, tabular(48)), "cnn": (plain_cnn, pictures(48))}[name]

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, build, lambda: {**classes(), "jit_compile": True})
        changes = ChangeShares(place, Layout(num_devices=2, by_epoch=CHANGES[2]))
        return fit_again(place, model, data, epochs=3, callbacks=[changes])

    agree(experiment, within=tolerance("xla"))


def plain_cnn() -> keras.Model:
    """A convolution without state."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="silu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4),
        ]
    )


class Nested(keras.Model):
    """Takes a tuple of an array and a dict; is built by its first batch; is two deep."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(6)])
        self.second = layers.Dense(6, activation="gelu")
        self.head = layers.Dense(1)

    def call(self, inputs: tuple[object, dict[str, object]], training: bool = False) -> object:
        left, rest = inputs
        joint = self.first(left) + self.second(ops.concatenate([rest["a"], rest["b"]], axis=-1))
        return self.head(ops.tanh(joint))


def test_nested_inputs_built_by_the_first_batch() -> None:
    """A tuple with a dict in it, for a subclassed model that nobody built."""
    arrays, targets = pairs(75)
    x = (arrays["left"], {"a": arrays["right"][:, :2], "b": arrays["right"][:, 2:]})
    agree(lambda place: fit_model(place, Nested, (x, targets["size"]), numbers), THREE)


def test_sequential_built_by_the_first_batch() -> None:
    """A Sequential without an Input, first seen with a partial batch."""

    def build() -> keras.Model:
        return keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(1)])

    agree(lambda place: fit_model(place, build, regression(11), lambda: {"loss": "mse"}), FIVE)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("clip", [None, 0.05], ids=["plain", "global_clipnorm"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_embeddings(optimizer: str, clip: float | None) -> None:
    """Sparse gradients: the same id in several shares, and several times in one sample."""
    rng = np.random.default_rng(9)
    x = rng.integers(0, 12, size=(75, 5)).astype("int32")
    x[:, 0] = 3
    y = np.tanh(x.sum(axis=1, keepdims=True) / 10 - 3).astype("float32")

    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                layers.Embedding(40, 6),
                layers.GlobalAveragePooling1D(),
                layers.Dense(1),
            ]
        )

    def compiled() -> dict[str, object]:
        kinds = {
            "sgd": lambda: sgd(global_clipnorm=clip),
            "adam": lambda: keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=clip),
        }
        return {"loss": "mse", "optimizer": kinds[optimizer]()}

    agree(lambda place: fit_model(place, build, (x, y), compiled), THREE)


def test_shared_layers() -> None:
    """One layer called twice, a model inside a model."""

    def build() -> keras.Model:
        left, right = keras.Input((6,), name="left"), keras.Input((4,), name="right")
        shared = keras.Sequential([layers.Dense(5, activation="tanh"), layers.Dense(3)])
        widened = layers.Dense(6)(right)
        return keras.Model(
            {"left": left, "right": right},
            layers.Dense(1)(layers.Add()([shared(left), shared(widened)])),
        )

    x, y = pairs(75)
    agree(lambda place: fit_model(place, build, (x, y["size"]), numbers))


def test_normalisations_of_a_sample() -> None:
    """Layer, group and unit normalisation look at one sample at a time."""

    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 3, use_bias=False),
                layers.GroupNormalization(2),
                layers.Activation("silu"),
                layers.DepthwiseConv2D(3),
                layers.LayerNormalization(),
                layers.Flatten(),
                layers.Dense(4),
                layers.RMSNormalization(),
            ]
        )

    agree(lambda place: fit_model(place, build, pictures(48), classes))


class Counts(layers.Layer):
    """Counts the steps it was trained, as a whole number and as a float."""

    def build(self, shape: object) -> None:
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.half = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: object, training: bool = False) -> object:
        if training:
            self.steps.assign(self.steps + 1)
            self.half.assign(self.half + 0.5)
        return x


def test_state_that_counts_steps() -> None:
    """State that does not depend on the samples goes on by one step, not by one replica."""

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((8,)), Counts(), layers.Dense(1)])

    agree(lambda place: fit_model(place, build, regression(75), lambda: {"loss": "mse"}), FIVE)


def test_changing_shares_does_not_retrace() -> None:
    """After every size of batch was seen, new shares run what is already traced."""
    counted = {"calls": 0}

    class Traced(layers.Layer):
        """Counts how often Python calls it."""

        def call(self, x: object) -> object:
            counted["calls"] += 1
            return x

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((8,)), Traced(), layers.Dense(1)])

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, build, lambda: {"loss": "mse"})
        x, y = regression(75)
        results = {"first": fit_again(place, model, (x, y))}
        before = counted["calls"]
        changes = ChangeShares(place, Layout(num_devices=3, by_batch=CHANGES[3]))
        results["second"] = fit_again(place, model, (x, y), callbacks=[changes])
        assert counted["calls"] == before, "new shares made Python call the layers again"
        return results

    agree(experiment, THREE)


@pytest.mark.filterwarnings("ignore:.ENG-086.")
def test_run_eagerly() -> None:
    """Without tf.function."""
    compiled = {**classes(), "run_eagerly": True}
    agree(lambda place: fit_model(place, mlp, tabular(27), lambda: compiled, epochs=1), TWO)


@pytest.mark.long
def test_synchronised_batchnorm_with_momentum_and_partial_batches() -> None:
    """The CNN of the law on five stand-ins of which one has no share."""
    agree(lambda place: fit_model(place, cnn, pictures(43), classes), FIVE)
