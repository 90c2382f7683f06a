"""Losses with a name: those of Keras, of classification, ranking, segmentation, survival."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .case import (
    Batch,
    BuiltStep,
    case,
    integers,
    learn,
    mlp,
    normal,
    to_classify,
    to_regress,
    uniform,
)

LOSSES = keras.losses


def loss(name: str, outputs: int, batch: Batch, *, last_bias: bool = True) -> Callable[[Any], Any]:
    """Register a step with a loss of targets (and what comes with them) and outputs."""

    def add(function: Any) -> Any:
        @case(f"named_losses/{name}")
        def build() -> BuiltStep:
            model = mlp(6, 12, outputs, last_bias=last_bias)
            return learn(lambda x, *more: function(model(x, training=True), *more), model, batch)

        return function

    return add


def with_loss(name: str, made: Callable[[], Any]) -> None:
    """Register a step with a loss object of Keras, held against softmax and one-hot labels."""

    @case(f"named_losses/keras_{name}")
    def build() -> BuiltStep:
        model, function = mlp(6, 12, 5), made()

        def loss_of(x: Any, y: Any) -> Any:
            return function(tf.one_hot(y, 5), tf.nn.softmax(model(x, training=True)))

        return learn(loss_of, model, to_classify())


with_loss("smoothed_crossentropy", lambda: LOSSES.CategoricalCrossentropy(label_smoothing=0.1))
with_loss("focal", lambda: LOSSES.CategoricalFocalCrossentropy())
with_loss("kl", lambda: LOSSES.KLDivergence())
with_loss("poisson_summed", lambda: LOSSES.Poisson(reduction="sum"))
with_loss("huber_mean_by_weight", lambda: LOSSES.Huber(reduction="mean_with_sample_weight"))
with_loss("log_cosh", lambda: LOSSES.LogCosh())
with_loss("cosine", lambda: LOSSES.CosineSimilarity())
with_loss("squared_hinge", lambda: LOSSES.SquaredHinge())
with_loss("categorical_hinge", lambda: LOSSES.CategoricalHinge())
with_loss("dice", lambda: LOSSES.Dice())
with_loss("dice_for_each_sample", lambda: LOSSES.Dice(axis=1))
with_loss("tversky", lambda: LOSSES.Tversky(alpha=0.3, beta=0.7))


def weighted(rng: Any, n: int) -> tuple[Any, ...]:
    """Return samples, labels and weights, of which some are zero."""
    weights = rng.uniform(0, 2, n).astype("float32")
    weights[::4] = 0.0
    return normal(rng, n, 6), integers(rng, 5, n), weights


@loss("keras_circle", 5, to_classify())
def circle(outputs: Any, y: Any) -> Any:
    return LOSSES.Circle(gamma=8)(y, tf.math.l2_normalize(outputs, axis=1))


@loss("sample_weights", 5, weighted)
def sample_weights(outputs: Any, y: Any, weights: Any) -> Any:
    return LOSSES.SparseCategoricalCrossentropy(from_logits=True)(y, outputs, weights)


@loss("sample_weights_averaged_by_hand", 5, weighted)
def averaged_weights(outputs: Any, y: Any, weights: Any) -> Any:
    each = LOSSES.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(y, outputs)
    return tf.reduce_sum(each * weights) / tf.reduce_sum(weights)


@loss("class_weights_from_the_batch", 5, to_classify())
def class_weights(outputs: Any, y: Any) -> Any:
    counts = tf.math.bincount(y, minlength=5, dtype=tf.float32)
    weights = tf.reduce_sum(counts) / (5.0 * tf.maximum(counts, 1.0))
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs)
    return tf.reduce_mean(tf.gather(weights, y) * each)


@loss("focal_over_number_of_positives", 5, to_classify())
def focal(outputs: Any, y: Any) -> Any:
    targets = tf.one_hot(y - 1, 5)
    shares = tf.sigmoid(outputs)
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=outputs)
    right = targets * shares + (1 - targets) * (1 - shares)
    alpha = targets * 0.25 + (1 - targets) * 0.75
    positives = tf.maximum(tf.reduce_sum(targets), 1.0)
    return tf.reduce_sum(alpha * (1 - right) ** 2 * each) / positives


@loss("quantiles", 3, to_regress(outputs=1))
def quantiles(outputs: Any, y: Any) -> Any:
    error = y - outputs
    levels = tf.constant([0.1, 0.5, 0.9])
    return tf.reduce_mean(tf.reduce_sum(tf.maximum(levels * error, (levels - 1) * error), axis=1))


@loss("gaussian_likelihood", 2, to_regress(outputs=1))
def gaussian(outputs: Any, y: Any) -> Any:
    mean, log_variance = tf.split(outputs, 2, axis=1)
    return 0.5 * tf.reduce_mean(log_variance + (y - mean) ** 2 * tf.exp(-log_variance))


@loss("mixture_density", 9, to_regress(outputs=1))
def mixture(outputs: Any, y: Any) -> Any:
    logits, mean, log_scale = tf.split(outputs, 3, axis=1)
    each = -0.5 * ((y - mean) * tf.exp(-log_scale)) ** 2 - log_scale
    return -tf.reduce_mean(tf.reduce_logsumexp(tf.nn.log_softmax(logits) + each, axis=1))


@loss("hinge_for_every_class", 5, to_classify())
def hinge(outputs: Any, y: Any) -> Any:
    own = tf.gather(outputs, y, batch_dims=1)[:, None]
    margins = tf.maximum(0.0, 1.0 + outputs - own) * (1 - tf.one_hot(y, 5))
    return tf.reduce_sum(margins) / tf.cast(tf.shape(y)[0], tf.float32)


@loss("list_ranked_over_the_batch", 1, to_regress(outputs=1), last_bias=False)
def list_ranking(outputs: Any, y: Any) -> Any:
    return -tf.reduce_sum(tf.nn.softmax(y, axis=0) * tf.nn.log_softmax(outputs, axis=0))


@loss("list_likelihood_in_order", 1, to_regress(outputs=1), last_bias=False)
def plackett_luce(outputs: Any, y: Any) -> Any:
    ordered = tf.gather(outputs[:, 0], tf.argsort(y[:, 0], direction="DESCENDING"))
    after = tf.math.cumulative_logsumexp(ordered, reverse=True)
    return tf.reduce_mean(after - ordered)


@loss("pairs_ranked", 1, to_regress(outputs=1), last_bias=False)
def pair_ranking(outputs: Any, y: Any) -> Any:
    above = tf.cast(y > tf.transpose(y), tf.float32)
    each = tf.nn.softplus(tf.transpose(outputs) - outputs)
    return tf.reduce_sum(above * each) / tf.reduce_sum(above)


@loss("lists_of_each_sample", 7, to_regress(outputs=7))
def lists(outputs: Any, y: Any) -> Any:
    gains = 2.0 ** tf.nn.relu(y) - 1.0
    rank = 1.0 + tf.reduce_sum(tf.sigmoid(4.0 * (outputs[:, None] - outputs[:, :, None])), axis=2)
    dcg = tf.reduce_sum(gains / tf.math.log1p(rank), axis=1)
    best = tf.sort(gains, axis=1, direction="DESCENDING") / tf.math.log1p(tf.range(1.0, 8.0))
    return -tf.reduce_mean(tf.math.divide_no_nan(dcg, tf.reduce_sum(best, axis=1)))


def survival(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    """Return samples, times and whether the event was seen; the first always is."""
    seen = (rng.uniform(size=n) < 0.6).astype("float32")
    seen[0] = 1.0
    return normal(rng, n, 6), uniform(rng, n), seen


@loss("partial_likelihood_of_survival", 1, survival, last_bias=False)
def cox(outputs: Any, times: Any, seen: Any) -> Any:
    order = tf.argsort(times, direction="DESCENDING")
    risk, seen = tf.gather(outputs[:, 0], order), tf.gather(seen, order)
    largest = tf.stop_gradient(tf.reduce_max(risk))
    log_sums = tf.math.log(tf.cumsum(tf.exp(risk - largest))) + largest
    return -tf.reduce_sum((risk - log_sums) * seen) / tf.reduce_sum(seen)


@loss("arcface", 4, to_classify())
def arcface(outputs: Any, y: Any) -> Any:
    centers = tf.math.l2_normalize(tf.random.stateless_normal([4, 5], seed=[1, 2]), axis=0)
    cosine = tf.matmul(tf.math.l2_normalize(outputs, axis=1), centers)
    sine = tf.sqrt(1.0 - cosine**2 + 1e-3)
    shifted = cosine * tf.cos(0.3) - sine * tf.sin(0.3)
    logits = 4.0 * tf.where(tf.one_hot(y, 5) > 0, shifted, cosine)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


@loss("early_learning_with_bootstrapped_labels", 5, to_classify())
def bootstrapped(outputs: Any, y: Any) -> Any:
    shares = tf.nn.softmax(outputs)
    targets = 0.8 * tf.one_hot(y, 5) + 0.2 * tf.stop_gradient(shares)
    each = -tf.reduce_sum(targets * tf.nn.log_softmax(outputs), axis=1)
    mean = tf.reduce_mean(shares, axis=0)
    return tf.reduce_mean(each) + 0.5 * tf.reduce_sum(mean * tf.math.log(5.0 * mean))


def masks(rng: Any, n: int) -> tuple[Any, ...]:
    """Return samples and masks of ten places."""
    return normal(rng, n, 6), integers(rng, 2, n, 10).astype("float32")


@loss("dice_of_the_batch", 10, masks)
def dice(outputs: Any, y: Any) -> Any:
    p = tf.sigmoid(outputs)
    return 1 - (2 * tf.reduce_sum(p * y) + 1) / (tf.reduce_sum(p) + tf.reduce_sum(y) + 1)


@loss("dice_of_each_sample", 10, masks)
def dice_each(outputs: Any, y: Any) -> Any:
    p = tf.sigmoid(outputs)
    both, sums = tf.reduce_sum(p * y, axis=1), tf.reduce_sum(p + y, axis=1)
    return tf.reduce_mean(1 - (2 * both + 1) / (sums + 1))


@loss("focal_tversky_of_the_batch", 10, masks)
def tversky(outputs: Any, y: Any) -> Any:
    p = tf.sigmoid(outputs)
    hit, extra, missed = (tf.reduce_sum(a) for a in (p * y, p * (1 - y), (1 - p) * y))
    return (1 - (hit + 1) / (hit + 0.3 * extra + 0.7 * missed + 1)) ** 0.75


@loss("overlap_of_boxes", 4, to_regress())
def boxes(outputs: Any, y: Any) -> Any:
    corner, size = outputs[:, :2], tf.nn.softplus(outputs[:, 2:])
    wanted, wanted_size = y[:, :2], tf.nn.softplus(y[:, 2:])
    low = tf.maximum(corner, wanted)
    high = tf.minimum(corner + size, wanted + wanted_size)
    both = tf.reduce_prod(tf.nn.softplus(4.0 * (high - low)) / 4.0, axis=1)
    union = tf.reduce_prod(size, axis=1) + tf.reduce_prod(wanted_size, axis=1) - both
    return tf.reduce_mean(1.0 - both / (union + 0.5))
