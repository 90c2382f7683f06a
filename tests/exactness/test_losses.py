"""The law for losses: reductions, weights, scalars, several outputs, and added losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import keras
import numpy as np
import pytest
from keras import layers, ops

from .candidates import Place
from .harness import (
    FIVE,
    THREE,
    TWO,
    Layout,
    agree,
    agree_in_fit,
    compile_model,
    fit_model,
    unequal_weights,
)
from .models import (
    classes,
    mlp,
    numbers,
    pairs,
    regression,
    regressor,
    sentences,
    sequential,
    series,
    several,
    tabular,
    transformer,
    two_by_two,
)

SHARE_WITHOUT_WEIGHT = Layout(num_devices=2, shares=(1, 3))


def mean_of_all(y_true: object, y_pred: object) -> object:
    return ops.mean(ops.square(y_true - y_pred))


def sum_of_all(y_true: object, y_pred: object) -> object:
    return ops.sum(ops.square(y_true - y_pred)) / 16.0


def root_of_mean(y_true: object, y_pred: object) -> object:
    """Return one number that is neither a mean nor a sum of what samples give."""
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred)) + 0.01)


def contrastive(y_true: object, y_pred: object) -> object:
    """Return one number that holds every sample of the batch against every other."""
    near = ops.exp(-ops.square(y_true - ops.transpose(y_true)))
    apart = ops.square(y_pred - ops.transpose(y_pred))
    return (
        ops.mean(near * apart)
        + ops.mean((1.0 - near) * ops.exp(-apart))
        + 0.1 * ops.mean(ops.square(y_pred))
    )


@pytest.mark.parametrize("loss", [mean_of_all, sum_of_all, root_of_mean, contrastive])
def test_functions_that_return_a_number(loss: Callable[[object, object], object]) -> None:
    """A scalar loss means what it means on the whole batch, whatever it is."""
    data = regression(75)
    agree_in_fit(regressor, data, lambda: {"loss": loss}, TWO, FIVE)


def test_ignored_class() -> None:
    """Targets that do not count: shares have different numbers of those that do."""
    x, y = tabular(75)
    y = np.where(np.arange(75) % 3 == 0, -1, y)

    def compiled() -> dict[str, object]:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
        return {"loss": loss}

    agree_in_fit(mlp, (x, y), compiled, FIVE)


def test_outputs_without_an_axis_of_features() -> None:
    def build() -> keras.Model:
        return sequential((8,), layers.Dense(5, activation="tanh"), layers.Dense(1), Last())

    x, y = regression(75)
    agree_in_fit(build, (x, y[:, 0]), numbers, THREE)


class Last(layers.Layer):
    def call(self, x: object) -> object:
        return x[:, 0]


REDUCTIONS = ("sum", "sum_over_batch_size", "mean_with_sample_weight")


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(reduction: str, weighted: bool) -> None:
    x, y = tabular(75)
    data = (x, y, unequal_weights(75)) if weighted else (x, y)

    def experiment(place: Place) -> dict[str, object]:
        def compiled() -> dict[str, object]:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
            rate = 0.003 if reduction == "sum" else 0.05
            return {"loss": loss, "optimizer": keras.optimizers.SGD(rate, momentum=0.9)}

        model = compile_model(place, mlp, compiled)
        weights = {"sample_weight": data[2]} if weighted else {}
        fit = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, **weights)
        test = model.evaluate(x, y, batch_size=20, verbose=0, return_dict=True, **weights)
        return {"weights": model.get_weights(), "history": fit.history, "evaluate": test}

    agree(experiment, THREE)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_share_whose_weights_are_zero(reduction: str) -> None:
    """The first replica has only samples without weight: no 0 / 0, no sample too many."""
    x, y = regression(16)
    weights = np.ones(16, "float32")
    weights[:4] = 0.0

    def experiment(place: Place) -> dict[str, object]:
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        rate = keras.optimizers.SGD
        return fit_model(
            place,
            regressor,
            (x, y),
            lambda: {"loss": loss, "optimizer": rate(0.01)},
            sample_weight=weights,
            epochs=8,
        )

    agree(experiment, SHARE_WITHOUT_WEIGHT)


def test_sample_weight_in_time() -> None:
    x, _ = series(75)
    y = np.tanh(np.cumsum(x[:, :, :1], axis=1)).astype("float32")
    weights = np.random.default_rng(8).uniform(0, 2, size=(75, 6)).astype("float32")

    def build() -> keras.Model:
        recurrent = layers.GRU(6, return_sequences=True)
        return keras.Sequential([keras.Input((6, 3)), recurrent, layers.Dense(1)])

    agree_in_fit(build, (x, y), {"loss": "mse", "weighted_metrics": ["mae"]}, sample_weight=weights)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_masked_and_weighted(reduction: str) -> None:
    """A mask counts over the whole batch: shares have different numbers of real tokens."""
    x, y = sentences(48)
    weights = unequal_weights(48)[:, None] * np.ones((1, 8), "float32")

    def compiled() -> dict[str, object]:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
        rate = 0.002 if reduction == "sum" else 0.05
        return {
            "loss": loss,
            "optimizer": keras.optimizers.SGD(rate, momentum=0.9),
            "weighted_metrics": ["accuracy"],
        }

    agree_in_fit(transformer, (x, y), compiled, THREE, sample_weight=weights)


def test_class_weight() -> None:
    data = tabular(75)
    weights = {0: 0.5, 1: 2.0, 2: 1.0, 3: 0.1}
    agree_in_fit(mlp, data, classes, class_weight=weights)


@pytest.mark.long
def test_class_weight_on_a_batch() -> None:
    x, y = tabular(64)

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, mlp, classes)
        for begin in range(0, 64, 8):
            rows = slice(begin, begin + 8)
            model.train_on_batch(x[rows], y[rows], class_weight={0: 0.5, 1: 2.0, 2: 1.0, 3: 0.1})
        return {"weights": model.get_weights()}

    agree(experiment)


def test_weights_of_several_outputs() -> None:
    x, y = pairs(64)  # whole batches: see the case two_by_two in models.py
    weights = {"kind": unequal_weights(64), "size": unequal_weights(64)[::-1].copy()}
    agree_in_fit(two_by_two, (x, y), several, THREE, sample_weight=weights)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_outputs_in_a_list() -> None:
    """Outputs, losses and loss weights by position; one output has no loss."""
    x, y = pairs(64)

    def build() -> keras.Model:
        inputs = keras.Input((6,))
        hidden = layers.Dense(8, activation="tanh")(inputs)
        return keras.Model(
            inputs, [layers.Dense(3)(hidden), layers.Dense(1)(hidden), layers.Dense(2)(hidden)]
        )

    def compiled() -> dict[str, object]:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return {"loss": [loss, "mse", None], "loss_weights": [0.3, 1.5, 1.0]}

    data = (x["left"], [y["kind"], y["size"], y["size"]])
    agree_in_fit(build, data, compiled)


REGULARIZERS: Mapping[str, Callable[[], dict[str, object]]] = {
    "kernel": lambda: {"kernel_regularizer": keras.regularizers.L2(0.05)},
    "bias": lambda: {"bias_regularizer": keras.regularizers.L2(0.5)},
    "activity": lambda: {"activity_regularizer": keras.regularizers.L2(0.05)},
    "orthogonal": lambda: {"kernel_regularizer": keras.regularizers.OrthogonalRegularizer(0.05)},
}


@pytest.mark.parametrize("kind", REGULARIZERS)
def test_regularizers(kind: str) -> None:
    """Penalties of weights count once, those of activities by sample."""

    def build() -> keras.Model:
        hidden = layers.Dense(12, activation="tanh", **REGULARIZERS[kind]())
        return keras.Sequential([keras.Input((8,)), hidden, layers.Dense(1)])

    def experiment(place: Place) -> dict[str, object]:
        x, y = regression(75)
        model = compile_model(place, build, numbers)
        fit = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        test = model.evaluate(x, y, batch_size=20, verbose=0, return_dict=True)
        return {"weights": model.get_weights(), "history": fit.history, "evaluate": test}

    agree(experiment, THREE)


class OwnLoss(keras.losses.Loss):
    def call(self, y_true: object, y_pred: object) -> object:
        return ops.mean(ops.log(ops.cosh(y_pred - y_true)), axis=-1)


class ComputesLoss(keras.Model):
    """A model that says itself what its loss is, and keeps a metric of a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = layers.Dense(6, activation="tanh"), layers.Dense(1)
        self.part = keras.metrics.Mean(name="part")

    def call(self, x: object) -> object:
        return self.head(self.hidden(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        part = ops.mean(ops.abs(y_pred) * ops.abs(x))
        self.part.update_state(part)
        return ops.mean(ops.square(y - y_pred)) + 0.1 * part + ops.mean(self.head.kernel**2)


def test_own_loss() -> None:
    agree_in_fit(regressor, regression(75), lambda: {"loss": OwnLoss()})


def test_own_compute_loss() -> None:
    agree_in_fit(ComputesLoss, regression(75), dict)


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
    return sequential(
        (8,),
        layers.Dense(6, activation="tanh"),
        AddsLoss(kind),
        layers.Dense(1, kernel_initializer="zeros"),
        AddsLoss("sum above" if kind == "sum above" else "mean"),
    )


@pytest.mark.parametrize("with_loss", [True, False], ids=["beside", "alone"])
@pytest.mark.parametrize("kind", ["mean", "sum", "constant"])
def test_added_losses(kind: str, with_loss: bool) -> None:
    loss = "mse" if with_loss else None
    agree_in_fit(lambda: adding(kind), regression(75), lambda: {"loss": loss}, TWO, FIVE)


def test_an_added_loss_that_begins_with_zero() -> None:
    """A penalty that is zero on the first batches: what it means shows only later."""

    def build() -> keras.Model:
        head = layers.Dense(1, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((8,)), head, AddsLoss("sum above")])

    agree_in_fit(build, regression(75), {"loss": "mse"})


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
    agree_in_fit(
        lambda: adding("batch"), regression(75), {"loss": "mse"}, Layout(num_devices=1), THREE
    )
