"""The law for every way in which a custom loop computes its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from .candidates import Place
from .harness import FIVE, THREE, TWO, Layout, agree, sgd, unequal_weights
from .loops import Parts, batches, calls_of, loop_results, saying, train_step
from .models import BY_NAME, mlp, regression, regressor, sentences, tabular
from .sparing import usually

LARGE = 16
EVEN = Layout(num_devices=2)


def logits(reduction: str | None) -> keras.losses.Loss:
    """Return the loss of a classifier."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def loss_parts(
    loss_of: Callable[..., Any],
    build: Callable[[], keras.Model] = mlp,
    optimizer: Callable[[], keras.optimizers.Optimizer] = sgd,
) -> Callable[[], Parts]:
    """Return what makes a loop with this loss, which is also tracked by a Mean."""

    def make() -> Parts:
        model, made = build(), optimizer()
        mean = keras.metrics.Mean(name="loss")
        step = train_step(model, made, loss_of, [mean])
        return Parts(model=model, optimizers=(made,), step=step, metrics=(mean,))

    return make


REDUCTIONS = ["sum", "mean", "sum_over_batch_size", "mean_with_sample_weight"]


@pytest.mark.long
@pytest.mark.parametrize("reduction", usually(REDUCTIONS, ["sum", "mean_with_sample_weight"]))
def test_reductions(reduction: str) -> None:
    """Every reduction of Keras; the last batch is partial."""
    x, y = tabular(75)
    loss = logits(reduction)
    rate = 0.005 if reduction == "sum" else 0.05
    make = loss_parts(loss, optimizer=lambda: sgd(learning_rate=rate))
    agree(lambda place: loop_results(place, make, batches(x, y)), TWO, FIVE)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("reduction", usually(REDUCTIONS, ["sum", "mean_with_sample_weight"]))
def test_reductions_with_sample_weights(reduction: str) -> None:
    """Weights that differ between shares, some zero."""
    x, y = tabular(75)
    loss = logits(reduction)
    rate = 0.005 if reduction == "sum" else 0.05
    make = loss_parts(
        lambda y, p, w: loss(y, p, sample_weight=w), optimizer=lambda: sgd(learning_rate=rate)
    )
    dataset = batches(x, y, unequal_weights(75))
    agree(lambda place: loop_results(place, make, dataset), THREE)


@pytest.mark.long
@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_reductions_of_functions(reduction: str) -> None:
    """A loss function wrapped by a class, with its reduction."""
    x, y = regression(75)
    loss = keras.losses.MeanAbsoluteError(reduction=reduction)
    rate = 0.002 if reduction == "sum" else 0.05
    make = loss_parts(loss, regressor, lambda: sgd(learning_rate=rate))
    agree(lambda place: loop_results(place, make, batches(x, y)), THREE)


@pytest.mark.covering(1)
@pytest.mark.long
@pytest.mark.parametrize("given", usually([False, True], [False]))
@pytest.mark.parametrize("weighted", [False, True])
def test_compute_average_loss(given: bool, weighted: bool) -> None:
    """The loss of each sample, averaged with and without a global batch size and weights."""
    x, y = tabular(75)
    loss = logits("none")

    def loss_of(y: Any, y_pred: Any, w: Any) -> Any:
        more = {"global_batch_size": LARGE} if given else {}
        weights = w if weighted else None
        return tf.nn.compute_average_loss(loss(y, y_pred), sample_weight=weights, **more)

    dataset = batches(x, y, unequal_weights(75))
    agree(lambda place: loop_results(place, loss_parts(loss_of), dataset), TWO, FIVE)


@pytest.mark.long
def test_sum_over_the_global_batch() -> None:
    """The sum of the samples' losses, divided by a number that the person knows."""
    x, y = tabular(75)
    loss = logits("none")
    make = loss_parts(lambda y, p: tf.reduce_sum(loss(y, p)) * (1.0 / LARGE))
    agree(lambda place: loop_results(place, make, batches(x, y)), TWO, FIVE)


@pytest.mark.long
def test_keras_sum_over_the_global_batch() -> None:
    """The same with the reduction of Keras."""
    x, y = tabular(75)
    loss = logits("sum")
    make = loss_parts(lambda y, p: loss(y, p) / LARGE)
    agree(lambda place: loop_results(place, make, batches(x, y)), TWO)


@pytest.mark.long
@pytest.mark.parametrize("layout", usually([EVEN, THREE], [THREE]), ids=str)
def test_mean_that_is_not_scaled(layout: Layout) -> None:
    """A mean over a replica's samples is put right, and that is said."""
    x, y = tabular(75)
    loss = logits("none")
    make = loss_parts(lambda y, p: tf.reduce_mean(loss(y, p)))
    with saying():
        agree(lambda place: loop_results(place, make, batches(x, y), reduce_op="MEAN"), layout)


@pytest.mark.long
def test_mean_of_squares_that_is_not_scaled() -> None:
    """The same of what a person computes from the outputs."""
    x, y = regression(75)
    make = loss_parts(lambda y, p: tf.reduce_mean(tf.square(y - p)), regressor)
    with saying():
        agree(lambda place: loop_results(place, make, batches(x, y), reduce_op="MEAN"), THREE)


@pytest.mark.long
@pytest.mark.parametrize("function", ["keras_ops", "functional"])
def test_keras_mean_that_is_not_scaled(function: str) -> None:
    """The same through Keras's operations and its functions of losses."""
    x, y = regression(75)

    def loss_of(y: Any, y_pred: Any) -> Any:
        if function == "keras_ops":
            return ops.mean(ops.square(y - y_pred))
        return tf.reduce_mean(keras.losses.mean_squared_error(y, y_pred))

    make = loss_parts(loss_of, regressor)
    with saying():
        agree(lambda place: loop_results(place, make, batches(x, y), reduce_op="MEAN"), THREE)


@pytest.mark.covering(1)
@pytest.mark.long
@pytest.mark.parametrize("layout", usually([EVEN, THREE], [THREE]), ids=str)
@pytest.mark.parametrize("samples", [64, 75])
def test_mean_over_the_number_of_replicas(layout: Layout, samples: int) -> None:
    """A mean that a person has divided by the number of replicas."""
    x, y = tabular(samples)
    loss = logits("none")

    def experiment(place: Place) -> dict[str, object]:
        count = calls_of(place).num_replicas_in_sync
        make = loss_parts(lambda y, p: tf.reduce_mean(loss(y, p)) / count)
        return loop_results(place, make, batches(x, y))

    agree(experiment, layout)


@pytest.mark.covering(1)
@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    "reduction",
    usually(["sum_over_batch_size", "mean_with_sample_weight"], ["sum_over_batch_size"]),
)
@pytest.mark.parametrize("weighted", [False, True])
def test_masks(reduction: str, weighted: bool) -> None:
    """Padded tokens do not count, and shares have different numbers of them."""
    x, y = sentences(75)
    loss = logits(reduction)
    weights = unequal_weights(75)[:, None] * np.ones((1, 8), "float32")

    def loss_of(y: Any, y_pred: Any, w: Any) -> Any:
        return loss(y, y_pred, w if weighted else None)

    make = loss_parts(loss_of, BY_NAME["transformer"].build)
    agree(lambda place: loop_results(place, make, batches(x, y, weights)), THREE)


@pytest.mark.long
def test_a_mask_in_a_metric() -> None:
    """Keras's metrics count what the mask of the predictions lets through."""
    x, y = sentences(75)
    loss = logits("sum_over_batch_size")

    def make() -> Parts:
        model, optimizer = BY_NAME["transformer"].build(), sgd()
        metrics = (keras.metrics.SparseCategoricalAccuracy(),)
        step = train_step(model, optimizer, loss, metrics)
        return Parts(model=model, optimizers=(optimizer,), step=step, metrics=metrics)

    agree(lambda place: loop_results(place, make, batches(x, y)), TWO)


def penalised() -> keras.Model:
    """Return a regressor with penalties on two of its weights."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(12, activation="tanh", kernel_regularizer="l2"),
            layers.Dense(1, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02)),
        ]
    )


@pytest.mark.long
def test_scaled_regularization() -> None:
    """`tf.nn.scale_regularization_loss` of the model's penalties."""
    x, y = regression(75)
    mse = keras.losses.MeanSquaredError()

    def make() -> Parts:
        model, optimizer = penalised(), sgd()

        def loss_of(y: Any, y_pred: Any) -> Any:
            return mse(y, y_pred) + tf.nn.scale_regularization_loss(tf.add_n(model.losses))

        metrics = (keras.metrics.Mean(name="loss"),)
        step = train_step(model, optimizer, loss_of, metrics)
        return Parts(model=model, optimizers=(optimizer,), step=step, metrics=metrics)

    agree(lambda place: loop_results(place, make, batches(x, y)), TWO, FIVE)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("added", ["sum", "tf.add_n", "loop"])
def test_model_losses(added: str) -> None:
    """``model.losses`` as the guides of Keras add them: put right, and said."""
    x, y = regression(75)
    mse = keras.losses.MeanSquaredError()

    def make() -> Parts:
        model, optimizer = penalised(), sgd()

        def loss_of(y: Any, y_pred: Any) -> Any:
            loss = mse(y, y_pred)
            if added == "sum":
                return loss + sum(model.losses)
            if added == "tf.add_n":
                return loss + tf.add_n(model.losses)
            for term in model.losses:
                loss += term
            return loss

        step = train_step(model, optimizer, loss_of)
        return Parts(model=model, optimizers=(optimizer,), step=step)

    with saying():
        agree(lambda place: loop_results(place, make, batches(x, y)), THREE)


@pytest.mark.long
def test_penalty_by_hand() -> None:
    """A penalty that is written out, scaled by hand."""
    x, y = regression(75)
    mse = keras.losses.MeanSquaredError()

    def experiment(place: Place) -> dict[str, object]:
        count = calls_of(place).num_replicas_in_sync

        def make() -> Parts:
            model, optimizer = regressor(), sgd()

            def loss_of(y: Any, y_pred: Any) -> Any:
                penalty = tf.add_n([tf.nn.l2_loss(w) for w in model.trainable_variables])
                return mse(y, y_pred) + 0.01 * penalty / count

            metrics = (keras.metrics.Mean(name="loss"),)
            step = train_step(model, optimizer, loss_of, metrics)
            return Parts(model=model, optimizers=(optimizer,), step=step, metrics=metrics)

        return loop_results(place, make, batches(x, y))

    agree(experiment, THREE, FIVE)


@pytest.mark.long
def test_activity_regularizer() -> None:
    """A penalty on what a layer puts out: a mean over samples, in ``model.losses``."""
    x, y = regression(75)
    mse = keras.losses.MeanSquaredError()

    def make() -> Parts:
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(12, activation="tanh", activity_regularizer="l2"),
                layers.Dense(1),
            ]
        )
        optimizer = sgd()
        step = train_step(model, optimizer, lambda y, p: mse(y, p) + sum(model.losses))
        return Parts(model=model, optimizers=(optimizer,), step=step)

    with saying():
        agree(lambda place: loop_results(place, make, batches(x, y)), THREE)


@pytest.mark.long
def test_several_losses() -> None:
    """A sum of losses of different reductions, each with a factor."""
    x, y = regression(75)
    mse = keras.losses.MeanSquaredError()
    total = keras.losses.MeanAbsoluteError(reduction="sum")
    each = keras.losses.LogCosh(reduction="none")

    def loss_of(y: Any, y_pred: Any) -> Any:
        average = tf.nn.compute_average_loss(each(y, y_pred))
        return 0.5 * mse(y, y_pred) + 0.01 * total(y, y_pred) + 2.0 * average

    agree(lambda place: loop_results(place, loss_parts(loss_of, regressor), batches(x, y)), THREE)


class Quantile(keras.losses.Loss):
    """A loss that a person wrote: one number per sample."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Weigh errors by their sign."""
        error = ops.cast(y_true, y_pred.dtype) - y_pred
        return ops.mean(ops.softplus(4.0 * error) - error, axis=-1)


@pytest.mark.long
@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_loss_of_ones_own(reduction: str) -> None:
    """A subclass of `keras.losses.Loss`."""
    x, y = regression(75)
    loss = Quantile(reduction=reduction)
    rate = 0.002 if reduction == "sum" else 0.05
    make = loss_parts(loss, regressor, lambda: sgd(learning_rate=rate))
    agree(lambda place: loop_results(place, make, batches(x, y)), TWO)


class Whole(keras.losses.Loss):
    """A loss that gives one number: the mean of its samples."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the mean error."""
        return ops.mean(ops.square(y_true - y_pred))


@pytest.mark.long
def test_loss_of_ones_own_that_gives_one_number() -> None:
    """One number is taken for the mean over the samples, and that is said."""
    x, y = regression(75)
    with saying():
        make = loss_parts(Whole(), regressor)
        agree(lambda place: loop_results(place, make, batches(x, y)), THREE)


@pytest.mark.long
def test_function_with_name_of_keras() -> None:
    """A vector of samples' losses, from Keras's function, averaged by TensorFlow."""
    x, y = regression(75)

    def loss_of(y: Any, y_pred: Any) -> Any:
        return tf.nn.compute_average_loss(keras.losses.mean_squared_error(y, y_pred))

    agree(lambda place: loop_results(place, loss_parts(loss_of, regressor), batches(x, y)), THREE)


@pytest.mark.long
def test_gradient_of_a_vector() -> None:
    """Gradients of samples' losses, not reduced: a tape adds them up."""
    x, y = regression(75)

    def make() -> Parts:
        model, optimizer = regressor(), sgd(learning_rate=0.002)
        mse = keras.losses.MeanSquaredError(reduction=None)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                each = mse(y, model(x, training=True))
            gradients = tape.gradient(each, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return tf.reduce_sum(each)

        return Parts(model=model, optimizers=(optimizer,), step=step)

    agree(lambda place: loop_results(place, make, batches(x, y)), THREE)


@pytest.mark.long
def test_a_mean_of_parts_of_each_sample() -> None:
    """A mean over the pixels of each sample first, then over the samples, by TensorFlow."""
    x = BY_NAME["cnn"].data(75)[0]

    def loss_of(y: Any, y_pred: Any) -> Any:
        each = tf.reduce_mean(tf.square(y - y_pred), axis=(1, 2, 3))
        return tf.nn.compute_average_loss(each, global_batch_size=LARGE)

    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 3, padding="same", activation="tanh"),
                layers.Conv2D(1, 3, padding="same"),
            ]
        )

    agree(lambda place: loop_results(place, loss_parts(loss_of, build), batches(x, x)), THREE)


@pytest.mark.long
def test_mean_inside_a_keras_loss_vector_of_pixels() -> None:
    """Losses per pixel: Keras's mean is over samples and pixels."""
    x = BY_NAME["cnn"].data(75)[0]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(1, 3, padding="same")])

    make = loss_parts(loss, build)
    targets = (x > 0).astype("float32")
    agree(lambda place: loop_results(place, make, batches(x, targets)), THREE)
