"""The law for `add_loss`: evener finds out by itself what the number of a share means."""

from __future__ import annotations

import keras
import pytest
from keras import layers, ops

from .candidates import Place
from .harness import FIVE, THREE, TWO, Layout, agree, compile_model, fit_model
from .models import regression


class AddsLoss(layers.Layer):
    """Passes its input on and adds a loss of it, of some kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def call(self, x: object) -> object:
        if self.kind == "mean":
            self.add_loss(0.1 * ops.mean(ops.square(x)))
        elif self.kind == "sum":
            self.add_loss(0.01 * ops.sum(ops.square(x)))
        elif self.kind == "sum above":  # nothing at first, then more and more
            self.add_loss(0.5 * ops.sum(ops.square(ops.maximum(ops.abs(x) - 0.02, 0.0))))
        elif self.kind == "constant":
            self.add_loss(ops.convert_to_tensor(0.25))
        else:  # of the whole batch: not a sum of what samples give
            self.add_loss(0.1 * ops.sum(ops.square(ops.mean(x, axis=0) - 0.5)))
        return x


def adding(kind: str) -> keras.Model:
    """A model of which two layers add losses."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(6, activation="tanh"),
            AddsLoss(kind),
            layers.Dense(1, kernel_initializer="zeros"),
            AddsLoss("sum above" if kind == "sum above" else "mean"),
        ]
    )


@pytest.mark.sampled(20)
@pytest.mark.parametrize("with_loss", [True, False], ids=["beside", "alone"])
@pytest.mark.parametrize("kind", ["mean", "sum", "constant"])
def test_added_losses(kind: str, with_loss: bool) -> None:
    """A loss that a layer adds, beside a compiled one or alone."""
    loss = "mse" if with_loss else None
    agree(
        lambda place: fit_model(
            place, lambda: adding(kind), regression(75), lambda: {"loss": loss}
        ),
        TWO,
        FIVE,
    )


def test_an_added_loss_that_begins_with_zero() -> None:
    """A penalty that is zero on the first batches: what it means shows only later."""

    def build() -> keras.Model:
        head = layers.Dense(1, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((8,)), head, AddsLoss("sum above")])

    agree(lambda place: fit_model(place, build, regression(75), lambda: {"loss": "mse"}))


@pytest.mark.sampled(20)
@pytest.mark.parametrize("first", [1, 2, 3])
def test_an_added_loss_that_begins_with_few_samples(first: int) -> None:
    """The first batch has hardly a sample to tell a sum from a mean by."""
    x, y = regression(40)

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, lambda: adding("sum"), lambda: {"loss": "mse"})
        for begin, end in ((0, first), (first, 16), (16, 40)):
            model.train_on_batch(x[begin:end], y[begin:end])
        return {"weights": model.get_weights()}

    agree(experiment, THREE)


def test_an_added_loss_of_the_batch_as_a_whole() -> None:
    """Neither a mean nor a sum over samples."""
    agree(
        lambda place: fit_model(
            place, lambda: adding("batch"), regression(75), lambda: {"loss": "mse"}
        ),
        Layout(num_devices=1),
        THREE,
    )
