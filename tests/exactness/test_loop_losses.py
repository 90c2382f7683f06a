"""The law for every way in which a custom loop computes its loss."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from .candidates import Place
from .harness import FIVE, THREE, TWO, Layout, agree, sgd, unequal_weights, usually
from .loops import Parts, agree_in_loop, batches, calls_of, loop_results, train_step
from .models import BY_NAME, mlp, regression, regressor, sentences, tabular

LARGE = 16
EVEN = Layout(num_devices=2)
WEIGHTS = unequal_weights(75)
PIXELS = BY_NAME["cnn"].data(75)[0]


def logits(reduction: str | None) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


EACH = logits("none")
MSE = keras.losses.MeanSquaredError()


class Quantile(keras.losses.Loss):
    """A loss that a person wrote: one number per sample."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        error = ops.cast(y_true, y_pred.dtype) - y_pred
        return ops.mean(ops.softplus(4.0 * error) - error, axis=-1)


class Whole(keras.losses.Loss):
    """A loss that gives one number: the mean of its samples."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_true - y_pred))


def penalised(activity: str | None = None) -> keras.Model:
    hidden = layers.Dense(
        12, activation="tanh", kernel_regularizer="l2", activity_regularizer=activity
    )
    last = layers.Dense(1, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02))
    return keras.Sequential([keras.Input((8,)), hidden, last])


def convolution(*filters: int) -> keras.Model:
    stack = [layers.Conv2D(n, 3, padding="same", activation="tanh") for n in filters]
    return keras.Sequential([keras.Input((8, 8, 1)), *stack, layers.Conv2D(1, 3, padding="same")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to compute a loss.

    Attributes:
        data: Samples, targets, and weights if there are any.
        loss: Function of the targets, the outputs and the weights.
        whole: Function of the model, that loss and the number of replicas; returns what is trained.
    """

    data: Sequence[Any]
    loss: Callable[..., Any]
    whole: Callable[[keras.Model, Any, int], Any] = lambda model, loss, count: loss
    build: Callable[[], keras.Model]
    rate: float = 0.05
    metrics: tuple[type[keras.Metric], ...] = ()
    reduce_op: str = "SUM"
    layouts: tuple[Layout, ...] = (THREE,)


regress = functools.partial(Way, data=regression(75), build=regressor)
classify = functools.partial(Way, data=tabular(75), build=mlp)
weigh = functools.partial(classify, data=(*tabular(75), WEIGHTS))
penalise = functools.partial(regress, build=penalised, loss=MSE)
translate = functools.partial(Way, data=sentences(75), build=BY_NAME["transformer"].build)
REDUCTIONS = {"sum": 0.005, "mean": 0.05, "sum_over_batch_size": 0.05}
REDUCTIONS["mean_with_sample_weight"] = 0.05
SUM, WEIGHTED = "sum", "mean_with_sample_weight"

WAYS = {
    # Reductions of Keras; some weights are zero, and shares differ in theirs.
    **{
        f"reduced by {name}": classify(loss=logits(name), rate=rate, layouts=(TWO, FIVE))
        for name, rate in REDUCTIONS.items()
    },
    **{
        f"weighted, reduced by {name}": weigh(loss=logits(name), rate=rate)
        for name, rate in REDUCTIONS.items()
    },
    **{
        f"errors reduced by {name}": regress(
            loss=keras.losses.MeanAbsoluteError(reduction=name), rate=rate
        )
        for name, rate in ((SUM, 0.002), (WEIGHTED, 0.05))
    },
    # Padded tokens do not count, and shares have different numbers of them.
    "masked": translate(
        loss=logits("sum_over_batch_size"), metrics=(keras.metrics.SparseCategoricalAccuracy,)
    ),
    "masked and weighted": translate(
        data=(*sentences(75), WEIGHTS[:, None] * np.ones((1, 8), "float32")), loss=logits(WEIGHTED)
    ),
    # Averages with and without a global batch size and weights.
    "tf.nn.compute_average_loss": classify(
        loss=lambda y, p: tf.nn.compute_average_loss(EACH(y, p)), layouts=(TWO, FIVE)
    ),
    "tf.nn.compute_average_loss, weighted, of a batch": weigh(
        loss=lambda y, p, w: tf.nn.compute_average_loss(
            EACH(y, p), sample_weight=w, global_batch_size=LARGE
        ),
        layouts=(TWO, FIVE),
    ),
    "a sum over the global batch": classify(
        loss=lambda y, p: tf.reduce_sum(EACH(y, p)) * (1.0 / LARGE), layouts=(TWO, FIVE)
    ),
    "Keras's sum over the global batch": classify(
        loss=lambda y, p: logits("sum")(y, p) / LARGE, layouts=(TWO,)
    ),
    # Means over what a replica would see.
    **{
        f"a mean on {layout}": classify(
            loss=lambda y, p: tf.reduce_mean(EACH(y, p)), reduce_op="MEAN", layouts=(layout,)
        )
        for layout in (EVEN, THREE)
    },
    "a mean of squares": regress(
        loss=lambda y, p: tf.reduce_mean(tf.square(y - p)), reduce_op="MEAN"
    ),
    "Keras's mean of squares": regress(
        loss=lambda y, p: ops.mean(ops.square(y - p)), reduce_op="MEAN"
    ),
    "a mean of a function of Keras": regress(
        loss=lambda y, p: tf.reduce_mean(keras.losses.mean_squared_error(y, p)), reduce_op="MEAN"
    ),
    **{
        f"a mean over the number of replicas, {samples} samples on {layout}": classify(
            data=tabular(samples),
            loss=lambda y, p: tf.reduce_mean(EACH(y, p)),
            whole=lambda model, loss, count: loss / count,
            layouts=(layout,),
        )
        for samples, layout in ((64, THREE), (75, EVEN))
    },
    # Penalties.
    "a scaled penalty": penalise(
        whole=lambda model, loss, count: (
            loss + tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        ),
        layouts=(TWO, FIVE),
    ),
    "penalties by sum": penalise(whole=lambda model, loss, count: loss + sum(model.losses)),
    "penalties by tf.add_n": penalise(
        whole=lambda model, loss, count: loss + tf.add_n(model.losses)
    ),
    "penalties one by one": penalise(
        whole=lambda model, loss, count: functools.reduce(operator.add, model.losses, loss)
    ),
    "a penalty of what a layer puts out": penalise(
        build=lambda: penalised("l2"), whole=lambda model, loss, count: loss + sum(model.losses)
    ),
    "a penalty by hand": regress(
        loss=MSE,
        whole=lambda model, loss, count: (
            loss + 0.01 * tf.add_n([tf.nn.l2_loss(w) for w in model.trainable_variables]) / count
        ),
        layouts=(THREE, FIVE),
    ),
    # Losses of other kinds.
    "several reductions": regress(
        loss=lambda y, p: (
            0.5 * MSE(y, p)
            + 0.01 * keras.losses.MeanAbsoluteError(reduction="sum")(y, p)
            + 2.0 * tf.nn.compute_average_loss(keras.losses.LogCosh(reduction="none")(y, p))
        )
    ),
    **{
        f"a class of one's own, by {name}": regress(
            loss=Quantile(reduction=name), rate=rate, layouts=(TWO,)
        )
        for name, rate in ((SUM, 0.002), (WEIGHTED, 0.05))
    },
    "a class that gives one number": regress(loss=Whole()),
    "a function with a name of Keras": regress(
        loss=lambda y, p: tf.nn.compute_average_loss(keras.losses.mean_squared_error(y, p))
    ),
    "pixels of each sample first": Way(
        data=(PIXELS, PIXELS),
        build=lambda: convolution(4),
        loss=lambda y, p: tf.nn.compute_average_loss(
            tf.reduce_mean(tf.square(y - p), axis=(1, 2, 3)), global_batch_size=LARGE
        ),
    ),
    "samples and pixels at once": Way(
        data=(PIXELS, (PIXELS > 0).astype("float32")),
        build=convolution,
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    ),
}
USUAL = ("weighted, reduced by sum", "masked", "penalties by sum")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", usually([*WAYS], USUAL))
def test_losses(name: str) -> None:
    """The last batch is partial, and the loss is also tracked by a Mean."""
    way = WAYS[name]

    def experiment(place: Place) -> dict[str, object]:
        count = calls_of(place).num_replicas_in_sync

        def make() -> Parts:
            model, optimizer = way.build(), sgd(learning_rate=way.rate)
            tracked = (keras.metrics.Mean(name="loss"), *(made() for made in way.metrics))

            def loss_of(*given: Any) -> Any:
                return way.whole(model, way.loss(*given), count)

            step = train_step(model, optimizer, loss_of, tracked)
            return Parts(model=model, optimizers=(optimizer,), step=step, metrics=tracked)

        return loop_results(place, make, batches(*way.data), reduce_op=way.reduce_op)

    agree(experiment, *way.layouts)


@pytest.mark.long
def test_gradient_of_a_vector() -> None:
    """Gradients of samples' losses, not reduced: a tape adds them up."""

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

    agree_in_loop(make, batches(*regression(75)), THREE)
