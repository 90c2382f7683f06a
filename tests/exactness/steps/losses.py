"""Losses: means and sums over the batch, losses with a name, operations along the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from .case import (
    Batch,
    BuiltStep,
    case,
    integers,
    learn,
    learned,
    mlp,
    normal,
    to_classify,
    to_regress,
    trained,
    uniform,
    written,
)

Loss = Callable[[Any, Any], Any]


def loss(name: str) -> Callable[[Loss], Loss]:
    """Register a step that trains a small regressor by a function of targets and outputs."""

    def add(function: Loss) -> Loss:
        @case(f"losses/{name}")
        def build() -> BuiltStep:
            model = mlp(6, 12, 4)
            return learn(lambda x, y: function(y, model(x, training=True)), model, to_regress())

        return function

    return add


@loss("half_of_mean")
def half_of_mean(y: Any, outputs: Any) -> Any:
    return 0.5 * tf.reduce_mean(tf.square(y - outputs))


@loss("mean_over_two")
def mean_over_two(y: Any, outputs: Any) -> Any:
    return tf.reduce_mean(tf.square(y - outputs)) / 2


@loss("mean_plus_half_of_mean")
def mean_plus_half_of_mean(y: Any, outputs: Any) -> Any:
    error = y - outputs
    return tf.reduce_mean(tf.abs(error)) + 0.5 * tf.reduce_mean(tf.square(error))


@loss("sum")
def total(y: Any, outputs: Any) -> Any:
    return 0.02 * tf.reduce_sum(tf.square(y - outputs))


@loss("sum_over_size")
def sum_over_size(y: Any, outputs: Any) -> Any:
    size = tf.cast(tf.shape(y)[0], tf.float32)
    return tf.reduce_sum(tf.square(y - outputs)) / size


@loss("sum_over_static_size")
def sum_over_static_size(y: Any, outputs: Any) -> Any:
    return tf.reduce_sum(tf.square(y - outputs)) / y.shape[0]


@loss("sum_over_tf_size")
def sum_over_tf_size(y: Any, outputs: Any) -> Any:
    return tf.reduce_sum(tf.square(y - outputs)) / tf.cast(tf.size(y), tf.float32)


@loss("sum_over_a_constant")
def sum_over_a_constant(y: Any, outputs: Any) -> Any:
    return tf.reduce_sum(tf.square(y - outputs)) / 24.0


@loss("vector")
def vector(y: Any, outputs: Any) -> Any:
    return 0.05 * tf.reduce_mean(tf.square(y - outputs), axis=-1)


@loss("list_of_losses")
def list_of_losses(y: Any, outputs: Any) -> Any:
    error = y - outputs
    return [tf.reduce_mean(tf.square(error)), tf.reduce_mean(tf.math.log(tf.cosh(error)))]


@loss("root_of_mean")
def root_of_mean(y: Any, outputs: Any) -> Any:
    return tf.sqrt(tf.reduce_mean(tf.square(y - outputs)))


@loss("log_of_mean")
def log_of_mean(y: Any, outputs: Any) -> Any:
    return 10.0 * tf.math.log(tf.reduce_mean(tf.square(y - outputs))) / tf.math.log(10.0)


@loss("exponential_of_mean")
def exponential_of_mean(y: Any, outputs: Any) -> Any:
    return tf.exp(0.5 * tf.reduce_mean(tf.square(y - outputs)))


@loss("square_of_mean")
def square_of_mean(y: Any, outputs: Any) -> Any:
    bias = tf.square(tf.reduce_mean(y - outputs))
    return bias + 0.1 * tf.reduce_mean(tf.square(y - outputs))


@loss("norm")
def norm(y: Any, outputs: Any) -> Any:
    return 0.1 * tf.norm(y - outputs)


@loss("relative_norm")
def relative_norm(y: Any, outputs: Any) -> Any:
    return tf.norm(y - outputs) / tf.norm(y)


@loss("norm_per_sample")
def norm_per_sample(y: Any, outputs: Any) -> Any:
    return tf.reduce_mean(tf.norm(y - outputs, axis=-1))


@loss("log_sum_exp")
def log_sum_exp(y: Any, outputs: Any) -> Any:
    return tf.reduce_logsumexp(tf.reduce_mean(tf.square(y - outputs), axis=-1))


@loss("tilted")
def tilted(y: Any, outputs: Any) -> Any:
    each = tf.reduce_mean(tf.square(y - outputs), axis=-1)
    return tf.math.log(tf.reduce_mean(tf.exp(0.5 * each))) / 0.5


@loss("largest")
def largest(y: Any, outputs: Any) -> Any:
    return tf.reduce_max(tf.reduce_mean(tf.square(y - outputs), axis=-1))


@loss("spread")
def spread(y: Any, outputs: Any) -> Any:
    each = tf.reduce_mean(tf.square(y - outputs), axis=-1)
    return tf.reduce_mean(each) + 0.1 * tf.math.reduce_variance(each)


@loss("softmax_over_the_batch")
def softmax_over_the_batch(y: Any, outputs: Any) -> Any:
    each = tf.reduce_mean(tf.square(y - outputs), axis=-1)
    return tf.reduce_sum(tf.stop_gradient(tf.nn.softmax(each, axis=0)) * each)


@loss("masked_sum_over_mask")
def masked_sum_over_mask(y: Any, outputs: Any) -> Any:
    mask = tf.cast(y > -0.5, tf.float32)
    return tf.reduce_sum(mask * tf.square(y - outputs)) / tf.reduce_sum(mask)


@loss("boolean_mask")
def boolean_mask(y: Any, outputs: Any) -> Any:
    return tf.reduce_mean(tf.boolean_mask(tf.square(y - outputs), y > -0.5))


@loss("missing_targets")
def missing_targets(y: Any, outputs: Any) -> Any:
    y = tf.where(y > 1.0, float("nan"), y)
    known = tf.math.is_finite(y)
    squares = tf.where(known, tf.square(tf.where(known, y, 0.0) - outputs), 0.0)
    return tf.math.divide_no_nan(
        tf.reduce_sum(squares), tf.math.count_nonzero(known, dtype="float32")
    )


@loss("hard_examples")
def hard_examples(y: Any, outputs: Any) -> Any:
    each = tf.reduce_mean(tf.square(y - outputs), axis=-1)
    hardest, _ = tf.math.top_k(each, k=tf.maximum(tf.shape(each)[0] // 4, 1))
    return tf.reduce_mean(hardest)


@loss("trimmed")
def trimmed(y: Any, outputs: Any) -> Any:
    each = tf.sort(tf.reduce_mean(tf.square(y - outputs), axis=-1))
    return tf.reduce_mean(each[: tf.shape(each)[0] * 2 // 3])


@loss("median")
def median(y: Any, outputs: Any) -> Any:
    each = tf.sort(tf.reduce_mean(tf.square(y - outputs), axis=-1))
    return each[tf.shape(each)[0] // 2]


@loss("error_relative_to_the_mean")
def error_relative_to_the_mean(y: Any, outputs: Any) -> Any:
    around = tf.reduce_sum(tf.square(y - tf.reduce_mean(y, axis=0)))
    return tf.reduce_sum(tf.square(y - outputs)) / around


@loss("correlation")
def correlation(y: Any, outputs: Any) -> Any:
    y, outputs = y - tf.reduce_mean(y, axis=0), outputs - tf.reduce_mean(outputs, axis=0)
    scale = tf.sqrt(tf.reduce_sum(y**2, axis=0) * tf.reduce_sum(outputs**2, axis=0) + 1e-3)
    return 1 - tf.reduce_mean(tf.reduce_sum(y * outputs, axis=0) / scale)


@loss("concordance")
def concordance(y: Any, outputs: Any) -> Any:
    mean_y, variance_y = tf.nn.moments(y, axes=[0])
    mean, variance = tf.nn.moments(outputs, axes=[0])
    together = tf.reduce_mean((y - mean_y) * (outputs - mean), axis=0)
    return 1 - tf.reduce_mean(2 * together / (variance + variance_y + (mean - mean_y) ** 2))


@loss("standardised_targets")
def standardised_targets(y: Any, outputs: Any) -> Any:
    y = (y - tf.reduce_mean(y, axis=0)) / (tf.math.reduce_std(y, axis=0) + 0.01)
    return tf.reduce_mean(tf.square(y - outputs))


@loss("scaled_by_the_largest_target")
def scaled_by_the_largest_target(y: Any, outputs: Any) -> Any:
    return tf.reduce_mean(tf.square((y - outputs) / tf.reduce_max(tf.abs(y))))


@loss("average_loss_of_tf_nn")
def average_loss_of_tf_nn(y: Any, outputs: Any) -> Any:
    each = tf.reduce_mean(tf.square(y - outputs), axis=-1)
    return tf.nn.compute_average_loss(each, global_batch_size=24)


@loss("neighbours_in_the_batch")
def neighbours_in_the_batch(y: Any, outputs: Any) -> Any:
    jumps = (outputs[1:] - outputs[:-1]) - (y[1:] - y[:-1])
    return tf.reduce_mean(tf.square(jumps)) + tf.reduce_mean(tf.square(y[0] - outputs[0]))


@written(
    "losses/tenth_of_mean_over_ten_micro_batches",
    to_regress(),
    lambda: trained(mlp(6, 12, 4)),
    sizes=(30, 30, 20, 30, 10),
)
def micro_batches(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    weights = model.trainable_variables
    sums = [tf.zeros_like(weight) for weight in weights]
    shown = 0.0
    for part_x, part_y in zip(tf.split(x, 10), tf.split(y, 10), strict=True):
        with tf.GradientTape() as tape:
            value = 0.1 * tf.reduce_mean(tf.square(part_y - model(part_x, training=True)))
        gradients = tape.gradient(value, weights)
        sums = [a + b for a, b in zip(sums, gradients, strict=True)]
        shown += value
    optimizer.apply_gradients(zip(sums, weights, strict=True))
    return shown


@case("losses/importance_weights_that_sum_to_one")
def importance_weights() -> BuiltStep:
    model = mlp(6, 12, 4)

    def loss_of(x: Any, y: Any, weight: Any) -> Any:
        each = tf.reduce_mean(tf.square(y - model(x)), axis=-1)
        return tf.reduce_sum(weight / tf.reduce_sum(weight) * each)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), normal(rng, n, 4), rng.uniform(0.1, 2, n).astype("float32")

    return learn(loss_of, model, batch)


@learned(
    "losses/divided_by_its_running_mean",
    to_regress(),
    lambda: (mlp(6, 12, 4), tf.Variable(1.0, trainable=False)),
)
def divided_by_running_mean(model: Any, running: Any, x: Any, y: Any) -> Any:
    value = tf.reduce_mean(tf.square(y - model(x)))
    running.assign(0.9 * running + 0.1 * tf.stop_gradient(value))
    return value / running


LOSSES = keras.losses


def named(name: str, outputs: int, batch: Batch, *, last_bias: bool = True) -> Callable[[Any], Any]:
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


@named("keras_circle", 5, to_classify())
def circle(outputs: Any, y: Any) -> Any:
    return LOSSES.Circle(gamma=8)(y, tf.math.l2_normalize(outputs, axis=1))


@named("sample_weights", 5, weighted)
def sample_weights(outputs: Any, y: Any, weights: Any) -> Any:
    return LOSSES.SparseCategoricalCrossentropy(from_logits=True)(y, outputs, weights)


@named("sample_weights_averaged_by_hand", 5, weighted)
def averaged_weights(outputs: Any, y: Any, weights: Any) -> Any:
    each = LOSSES.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(y, outputs)
    return tf.reduce_sum(each * weights) / tf.reduce_sum(weights)


@named("class_weights_from_the_batch", 5, to_classify())
def class_weights(outputs: Any, y: Any) -> Any:
    counts = tf.math.bincount(y, minlength=5, dtype=tf.float32)
    weights = tf.reduce_sum(counts) / (5.0 * tf.maximum(counts, 1.0))
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs)
    return tf.reduce_mean(tf.gather(weights, y) * each)


@named("focal_over_number_of_positives", 5, to_classify())
def focal(outputs: Any, y: Any) -> Any:
    targets = tf.one_hot(y - 1, 5)
    shares = tf.sigmoid(outputs)
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=outputs)
    right = targets * shares + (1 - targets) * (1 - shares)
    alpha = targets * 0.25 + (1 - targets) * 0.75
    positives = tf.maximum(tf.reduce_sum(targets), 1.0)
    return tf.reduce_sum(alpha * (1 - right) ** 2 * each) / positives


@named("quantiles", 3, to_regress(outputs=1))
def quantiles(outputs: Any, y: Any) -> Any:
    error = y - outputs
    levels = tf.constant([0.1, 0.5, 0.9])
    return tf.reduce_mean(tf.reduce_sum(tf.maximum(levels * error, (levels - 1) * error), axis=1))


@named("gaussian_likelihood", 2, to_regress(outputs=1))
def gaussian(outputs: Any, y: Any) -> Any:
    mean, log_variance = tf.split(outputs, 2, axis=1)
    return 0.5 * tf.reduce_mean(log_variance + (y - mean) ** 2 * tf.exp(-log_variance))


@named("mixture_density", 9, to_regress(outputs=1))
def mixture(outputs: Any, y: Any) -> Any:
    logits, mean, log_scale = tf.split(outputs, 3, axis=1)
    each = -0.5 * ((y - mean) * tf.exp(-log_scale)) ** 2 - log_scale
    return -tf.reduce_mean(tf.reduce_logsumexp(tf.nn.log_softmax(logits) + each, axis=1))


@named("hinge_for_every_class", 5, to_classify())
def hinge(outputs: Any, y: Any) -> Any:
    own = tf.gather(outputs, y, batch_dims=1)[:, None]
    margins = tf.maximum(0.0, 1.0 + outputs - own) * (1 - tf.one_hot(y, 5))
    return tf.reduce_sum(margins) / tf.cast(tf.shape(y)[0], tf.float32)


@named("list_ranked_over_the_batch", 1, to_regress(outputs=1), last_bias=False)
def list_ranking(outputs: Any, y: Any) -> Any:
    return -tf.reduce_sum(tf.nn.softmax(y, axis=0) * tf.nn.log_softmax(outputs, axis=0))


@named("list_likelihood_in_order", 1, to_regress(outputs=1), last_bias=False)
def plackett_luce(outputs: Any, y: Any) -> Any:
    ordered = tf.gather(outputs[:, 0], tf.argsort(y[:, 0], direction="DESCENDING"))
    after = tf.math.cumulative_logsumexp(ordered, reverse=True)
    return tf.reduce_mean(after - ordered)


@named("pairs_ranked", 1, to_regress(outputs=1), last_bias=False)
def pair_ranking(outputs: Any, y: Any) -> Any:
    above = tf.cast(y > tf.transpose(y), tf.float32)
    each = tf.nn.softplus(tf.transpose(outputs) - outputs)
    return tf.reduce_sum(above * each) / tf.reduce_sum(above)


@named("lists_of_each_sample", 7, to_regress(outputs=7))
def lists(outputs: Any, y: Any) -> Any:
    gains = 2.0 ** tf.nn.relu(y) - 1.0
    rank = 1.0 + tf.reduce_sum(tf.sigmoid(4.0 * (outputs[:, None] - outputs[:, :, None])), axis=2)
    dcg = tf.reduce_sum(gains / tf.math.log1p(rank), axis=1)
    best = tf.sort(gains, axis=1, direction="DESCENDING") / tf.math.log1p(tf.range(1.0, 8.0))
    return -tf.reduce_mean(tf.math.divide_no_nan(dcg, tf.reduce_sum(best, axis=1)))


def survival(rng: Any, n: int) -> tuple[Any, ...]:
    """Return samples, times and whether the event was seen; the first always is."""
    seen = (rng.uniform(size=n) < 0.6).astype("float32")
    seen[0] = 1.0
    return normal(rng, n, 6), uniform(rng, n), seen


@named("partial_likelihood_of_survival", 1, survival, last_bias=False)
def cox(outputs: Any, times: Any, seen: Any) -> Any:
    order = tf.argsort(times, direction="DESCENDING")
    risk, seen = tf.gather(outputs[:, 0], order), tf.gather(seen, order)
    largest = tf.stop_gradient(tf.reduce_max(risk))
    log_sums = tf.math.log(tf.cumsum(tf.exp(risk - largest))) + largest
    return -tf.reduce_sum((risk - log_sums) * seen) / tf.reduce_sum(seen)


@named("arcface", 4, to_classify())
def arcface(outputs: Any, y: Any) -> Any:
    centers = tf.math.l2_normalize(tf.random.stateless_normal([4, 5], seed=[1, 2]), axis=0)
    cosine = tf.matmul(tf.math.l2_normalize(outputs, axis=1), centers)
    sine = tf.sqrt(1.0 - cosine**2 + 1e-3)
    shifted = cosine * tf.cos(0.3) - sine * tf.sin(0.3)
    logits = 4.0 * tf.where(tf.one_hot(y, 5) > 0, shifted, cosine)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


@named("early_learning_with_bootstrapped_labels", 5, to_classify())
def bootstrapped(outputs: Any, y: Any) -> Any:
    shares = tf.nn.softmax(outputs)
    targets = 0.8 * tf.one_hot(y, 5) + 0.2 * tf.stop_gradient(shares)
    each = -tf.reduce_sum(targets * tf.nn.log_softmax(outputs), axis=1)
    mean = tf.reduce_mean(shares, axis=0)
    return tf.reduce_mean(each) + 0.5 * tf.reduce_sum(mean * tf.math.log(5.0 * mean))


def masks(rng: Any, n: int) -> tuple[Any, ...]:
    return normal(rng, n, 6), integers(rng, 2, n, 10).astype("float32")


@named("dice_of_the_batch", 10, masks)
def dice(outputs: Any, y: Any) -> Any:
    p = tf.sigmoid(outputs)
    return 1 - (2 * tf.reduce_sum(p * y) + 1) / (tf.reduce_sum(p) + tf.reduce_sum(y) + 1)


@named("dice_of_each_sample", 10, masks)
def dice_each(outputs: Any, y: Any) -> Any:
    p = tf.sigmoid(outputs)
    both, sums = tf.reduce_sum(p * y, axis=1), tf.reduce_sum(p + y, axis=1)
    return tf.reduce_mean(1 - (2 * both + 1) / (sums + 1))


@named("focal_tversky_of_the_batch", 10, masks)
def tversky(outputs: Any, y: Any) -> Any:
    p = tf.sigmoid(outputs)
    hit, extra, missed = (tf.reduce_sum(a) for a in (p * y, p * (1 - y), (1 - p) * y))
    return (1 - (hit + 1) / (hit + 0.3 * extra + 0.7 * missed + 1)) ** 0.75


@named("overlap_of_boxes", 4, to_regress())
def boxes(outputs: Any, y: Any) -> Any:
    corner, size = outputs[:, :2], tf.nn.softplus(outputs[:, 2:])
    wanted, wanted_size = y[:, :2], tf.nn.softplus(y[:, 2:])
    low = tf.maximum(corner, wanted)
    high = tf.minimum(corner + size, wanted + wanted_size)
    both = tf.reduce_prod(tf.nn.softplus(4.0 * (high - low)) / 4.0, axis=1)
    union = tf.reduce_prod(size, axis=1) + tf.reduce_prod(wanted_size, axis=1) - both
    return tf.reduce_mean(1.0 - both / (union + 0.5))


Used = Callable[[Any, Any], Any]


def along(name: str, *, last_bias: bool = True) -> Callable[[Used], Used]:
    """Register a step whose loss is a function of targets and outputs."""

    def add(function: Used) -> Used:
        @case(f"batch_axis/{name}")
        def build() -> BuiltStep:
            model = mlp(6, 10, 4, last_bias=last_bias)
            return learn(lambda x, y: function(y, model(x, training=True)), model, to_regress())

        return function

    return add


def near(a: Any, b: Any) -> Any:
    return tf.reduce_mean(tf.square(a - b))


@along("cumulative_sum")
def cumulative_sum(y: Any, p: Any) -> Any:
    return 0.05 * near(tf.cumsum(p, axis=0), tf.cumsum(y, axis=0, exclusive=True))


@along("cumulative_sum_in_reverse")
def reverse_sum(y: Any, p: Any) -> Any:
    return 0.05 * near(tf.cumsum(p, axis=0, reverse=True), y)


@along("roll")
def roll(y: Any, p: Any) -> Any:
    return near(tf.roll(p, shift=2, axis=0), y) + near(p, tf.roll(y, shift=-1, axis=0))


@along("roll_of_both_axes")
def roll_of_both(y: Any, p: Any) -> Any:
    return near(tf.roll(p, shift=[1, 2], axis=[0, 1]), y)


@along("reverse")
def reverse(y: Any, p: Any) -> Any:
    return near(tf.reverse(p, axis=[0]), y) + 0.5 * near(p[::-1, ::-1], y)


@along("sort_by_column")
def sort(y: Any, p: Any) -> Any:
    return near(tf.sort(p, axis=0), tf.sort(y, axis=0))


@along("sort_by_feature")
def sort_features(y: Any, p: Any) -> Any:
    return near(tf.sort(p, axis=1), tf.sort(y, axis=1))


@along("argsort_and_gather")
def argsort(y: Any, p: Any) -> Any:
    order = tf.argsort(y[:, 0], direction="DESCENDING", stable=True)
    p = tf.gather(p, order)
    return near(p[1:], tf.gather(y, order)[:-1])


@along("largest_rows")
def largest_rows(y: Any, p: Any) -> Any:
    _, rows = tf.math.top_k(p[:, 0], k=2)
    return near(tf.gather(p, rows), tf.gather(y, rows))


@along("argmax_of_columns")
def argmax(y: Any, p: Any) -> Any:
    best = tf.argmax(y, axis=0)
    picked = tf.gather_nd(p, tf.stack([best, tf.range(4, dtype=tf.int64)], axis=1))
    return tf.reduce_mean((picked - 1.0) ** 2)


@along("every_other_row")
def strided(y: Any, p: Any) -> Any:
    return near(p[::2], y[::2]) + 0.5 * near(p[1::2], y[1::2])


@along("first_and_last_row")
def ends(y: Any, p: Any) -> Any:
    return near(p[0], y[-1]) + near(p[-1:], y[:1]) + near(p[: tf.shape(p)[0] // 2 + 1], 0.0)


@along("rows_moved_to_columns", last_bias=False)
def transposed(y: Any, p: Any) -> Any:
    q = tf.transpose(p)
    return near(tf.nn.softmax(q, axis=1), tf.nn.softmax(tf.transpose(y), axis=1)) * 20.0


@along("flattened_and_restored")
def flattened(y: Any, p: Any) -> Any:
    flat = tf.reshape(p, [-1])
    pairs = tf.reshape(flat, [-1, 2])
    return near(tf.reshape(pairs[:, ::-1], tf.shape(y)), y)


@along("rows_folded_in_columns")
def folded(y: Any, p: Any) -> Any:
    columns = tf.reshape(p, [4, -1])
    return near(columns, tf.reshape(y, [4, -1])) + tf.square(tf.reduce_mean(columns[0]))


@along("repeated_and_tiled")
def repeated(y: Any, p: Any) -> Any:
    return near(tf.repeat(p, 3, axis=0), tf.tile(y, [3, 1]))


@along("stacked_before_the_batch")
def stacked(y: Any, p: Any) -> Any:
    both = tf.stack([p, y, p + y])
    return tf.reduce_mean(tf.math.reduce_variance(both, axis=0)) + near(both[0], both[1])


@along("products_of_all_pairs")
def gram(y: Any, p: Any) -> Any:
    return 0.1 * near(p @ tf.transpose(p), tf.linalg.matmul(y, y, transpose_b=True))


@along("masked_rows_of_unknown_number")
def masked(y: Any, p: Any) -> Any:
    keep = y[:, 0] > -1.0
    kept = tf.boolean_mask(p, keep)
    rows = tf.where(keep)[:, 0]
    back = tf.scatter_nd(rows[:, None], kept, tf.cast(tf.shape(p), tf.int64))
    return near(back, y) + tf.reduce_sum(kept) / tf.cast(tf.size(rows), tf.float32) ** 2


@along("segments_of_unique_values")
def segments(y: Any, p: Any) -> Any:
    kinds, place = tf.unique(tf.cast(tf.math.floor(y[:, 0]), tf.int32))
    number = tf.size(kinds)
    means = tf.math.unsorted_segment_mean(p, place, number)
    return near(tf.gather(means, place), y) + tf.reduce_mean(
        tf.math.unsorted_segment_max(p, place, number) ** 2
    )


@along("differences_and_moving_means")
def moving_means(y: Any, p: Any) -> Any:
    padded = tf.pad(p, [[1, 1], [0, 0]], mode="REFLECT")
    means = (padded[:-2] + padded[1:-1] + padded[2:]) / 3.0
    return near(means, y) + 0.2 * tf.reduce_mean(tf.abs(p[1:] - p[:-1]) ** 1.5)


@along("convolved_over_the_batch")
def convolved(y: Any, p: Any) -> Any:
    kernel = tf.constant([0.25, 0.5, 0.25])[:, None, None] * tf.eye(4)[None]
    smooth = tf.nn.conv1d(p[None], kernel, stride=1, padding="SAME")[0]
    return near(smooth, y)


@along("principal_directions")
def principal(y: Any, p: Any) -> Any:
    centred = p - tf.reduce_mean(p, axis=0)
    covariance = tf.matmul(centred, centred, transpose_a=True)
    covariance /= tf.cast(tf.shape(p)[0], tf.float32)
    return near(p, y) - 0.1 * tf.linalg.logdet(covariance + tf.eye(4))


@along("distance_to_the_nearest_other")
def nearest(y: Any, p: Any) -> Any:
    far = tf.reduce_sum((p[:, None] - p[None]) ** 2, axis=2) + 1e6 * tf.eye(tf.shape(p)[0])
    closest = tf.sqrt(tf.reduce_min(far, axis=1) + 1e-2)
    return near(p, y) - 0.1 * tf.reduce_mean(tf.math.log(closest))


@along("normalised_over_all_axes")
def normalised(y: Any, p: Any) -> Any:
    scaled = (p - tf.reduce_min(p)) / (tf.reduce_max(p) - tf.reduce_min(p))
    return near(scaled, tf.sigmoid(y)) * 5.0


@along("product_over_the_batch")
def product(y: Any, p: Any) -> Any:
    chance = tf.reduce_prod(1.0 - 0.05 * tf.sigmoid(p - y), axis=0)
    return -tf.reduce_mean(tf.math.log(1.05 - chance))
