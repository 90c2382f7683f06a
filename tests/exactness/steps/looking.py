"""Steps that only look, and metrics of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from exactness.models import sequential

from .case import (
    Batch,
    BuiltStep,
    case,
    integers,
    mlp,
    normal,
    of_shape,
    sgd,
    state,
    to_classify,
    to_regress,
    written,
)

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def looking(name: str, outputs: int, batch: Batch) -> Callable[[Any], Any]:
    """Register a step that returns a function of the model and the arguments."""

    def add(function: Any) -> Any:
        @case(f"evaluation/{name}")
        def build() -> BuiltStep:
            model = mlp(6, 10, outputs)
            return BuiltStep(
                step=lambda *arguments: function(model, *arguments),
                batch=batch,
                variables=state(model),
            )

        return function

    return add


@looking("half_of_mean", 4, to_regress())
def half_of_mean(model: Any, x: Any, y: Any) -> Any:
    return 0.5 * tf.reduce_mean(tf.square(y - model(x, training=False)))


@looking("size_of_the_batch", 4, to_regress())
def size(model: Any, x: Any, y: Any) -> Any:
    return tf.shape(x)[0]


@looking("sums_and_counts", 5, to_classify())
def sums_and_counts(model: Any, x: Any, y: Any) -> Any:
    logits = model(x)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    hit = tf.argmax(logits, axis=1, output_type=tf.int32) == y
    return {
        "loss_sum": tf.reduce_sum(each),
        "correct": tf.reduce_sum(tf.cast(hit, tf.int64)),
        "count": tf.size(y),
        "static_count": x.shape[0],
        "all": tf.reduce_all(hit),
        "any": tf.reduce_any(hit),
        "number": 3,
        "rate": 0.5,
        "nothing": None,
    }


@looking("predictions", 5, of_shape(6))
def predictions(model: Any, x: Any) -> Any:
    return model(x, training=False)


@looking("predictions_in_a_structure", 5, to_classify())
def structure(model: Any, x: Any, y: Any) -> Any:
    shares = tf.nn.softmax(model(x))
    best = tf.math.top_k(shares, k=2)
    entropy = -tf.reduce_sum(shares * tf.math.log(shares), axis=1)
    return [shares, {"best": best, "label": y}, (entropy, [tf.reduce_max(entropy)]), x.shape[-1]]


@looking("loss_of_each_sample", 5, to_classify())
def each_loss(model: Any, x: Any, y: Any) -> Any:
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
    return each, tf.reduce_mean(each), tf.math.reduce_std(each)


@looking("worst_samples_of_the_batch", 5, to_classify())
def worst(model: Any, x: Any, y: Any) -> Any:
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
    values, rows = tf.math.top_k(each, k=3)
    return {"values": values, "rows": rows, "samples": tf.gather(x, rows)}


@looking("rows_that_pass_a_threshold", 5, of_shape(6))
def passing(model: Any, x: Any) -> Any:
    sure = tf.reduce_max(tf.nn.softmax(3.0 * model(x)), axis=1)
    return tf.where(sure > 0.5), tf.boolean_mask(x, sure > 0.5)


@looking("all_pairs", 5, of_shape(6))
def all_pairs(model: Any, x: Any) -> Any:
    z = tf.math.l2_normalize(model(x), axis=1)
    return tf.matmul(z, z, transpose_b=True)


@looking("mean_and_covariance_of_features", 5, of_shape(6))
def covariance(model: Any, x: Any) -> Any:
    z = model(x)
    centred = z - tf.reduce_mean(z, axis=0)
    number = tf.cast(tf.shape(z)[0] - 1, tf.float32)
    return tf.reduce_mean(z, axis=0), tf.matmul(centred, centred, transpose_a=True) / number


@looking("gradients_of_weights_and_inputs", 5, to_classify())
def gradients(model: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = ENTROPY(y, model(x))
    of_weights, of_inputs = tape.gradient(loss, (model.trainable_variables, x))
    return {"weights": of_weights, "saliency": tf.abs(of_inputs)}


@looking("table_of_derivatives_of_each_sample", 5, of_shape(6))
def derivatives(model: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tf.nn.softmax(model(x))
    return tape.batch_jacobian(outputs, x)


@looking("directions_by_forward_accumulation", 5, of_shape(6))
def forward(model: Any, x: Any) -> Any:
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        outputs = tf.reduce_sum(tf.tanh(model(x)), axis=1)
    return accumulator.jvp(outputs)


@looking("time_major_outputs", 4, of_shape(7, 6))
def time_major(model: Any, x: Any) -> Any:
    outputs = tf.reshape(model(tf.reshape(x, [-1, 6])), [-1, 7, 4])
    return tf.transpose(outputs, [1, 0, 2]), tf.unstack(outputs, axis=1)[0]


@looking("baseline_of_the_first_sample", 4, of_shape(6))
def baseline(model: Any, x: Any) -> Any:
    outputs = model(x)
    return outputs - outputs[:1], tf.math.l2_normalize(outputs, axis=0), outputs[-1]


@looking("ragged_predictions", 5, of_shape(6))
def ragged(model: Any, x: Any) -> Any:
    shares = tf.nn.softmax(3.0 * model(x))
    return tf.ragged.boolean_mask(shares, shares > 0.2)


@written(
    "evaluation/several_passes_with_dropout",
    of_shape(6),
    lambda: sequential((6,), layers.Dense(8, "tanh"), layers.Dropout(0.4, seed=2), layers.Dense(3)),
)
def several_passes(model: Any, x: Any) -> Any:
    passes = tf.stack([tf.nn.softmax(model(x, training=True)) for _ in range(4)])
    return passes, tf.reduce_mean(passes, axis=0), tf.math.reduce_std(passes, axis=0)


@written(
    "evaluation/votes_of_the_nearest_in_a_memory",
    to_classify(),
    lambda: (
        mlp(6, 10, 4),
        tf.Variable(tf.random.stateless_normal([30, 4], seed=[1, 2]), trainable=False),
        tf.Variable(tf.range(30) % 5, trainable=False),
        keras.metrics.Mean(),
    ),
)
def nearest(model: Any, memory: Any, labels: Any, hits: Any, x: Any, y: Any) -> Any:
    scores = tf.matmul(model(x), memory, transpose_b=True)
    near, rows = tf.math.top_k(scores, k=5)
    votes = tf.one_hot(tf.gather(labels, rows), 5) * tf.nn.softmax(near)[..., None]
    guess = tf.argmax(tf.reduce_sum(votes, axis=1), axis=1, output_type=tf.int32)
    hits.update_state(guess == y)
    return guess, hits.result()


@case("evaluation/test_step_with_trackers_and_batchnorm")
def test_step() -> BuiltStep:
    model = sequential((6,), layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dense(5))
    loss_tracker = keras.metrics.Mean(name="loss")
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    def step(data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        logits = model(x, training=False)
        loss_tracker.update_state(ENTROPY(y, logits, sample_weight), sample_weight=tf.shape(x)[0])
        accuracy.update_state(y, logits, sample_weight=sample_weight)
        return {m.name: m.result() for m in (loss_tracker, accuracy)}

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        weight = rng.uniform(0.2, 2, n).astype("float32")
        return ((normal(rng, n, 6), integers(rng, 5, n), weight),)

    return BuiltStep(step=step, batch=batch, variables=state(model, loss_tracker, accuracy))


METRICS = keras.metrics


def measured(
    name: str,
    outputs: int,
    made: Callable[[], list[Any]],
    targets: Callable[[Any, Any], Any],
    guesses: Callable[[Any], Any],
) -> None:
    """Register a step that trains and keeps metrics."""

    @case(f"metrics/{name}")
    def build() -> BuiltStep:
        model, metrics = mlp(6, 10, outputs), made()
        optimizer = sgd(model.trainable_variables)

        def step(x: Any, y: Any) -> Any:
            wanted = targets(x, y)
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                loss = tf.reduce_mean(tf.square(logits - tf.cast(y, tf.float32)[:, None] / 5))
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            given = guesses(logits)
            for metric in metrics:
                metric.update_state(wanted, given)
            return {metric.name: metric.result() for metric in metrics}

        return BuiltStep(
            step=step, batch=to_classify(), variables=state(model, optimizer, *metrics)
        )


measured(
    "classes",
    5,
    lambda: [
        METRICS.SparseCategoricalAccuracy(),
        METRICS.SparseTopKCategoricalAccuracy(k=2),
        METRICS.SparseCategoricalCrossentropy(),
    ],
    lambda x, y: y,
    lambda logits: tf.nn.softmax(logits),
)


measured(
    "one_hot_classes",
    5,
    lambda: [
        METRICS.CategoricalAccuracy(),
        METRICS.TopKCategoricalAccuracy(k=2),
        METRICS.KLDivergence(),
        METRICS.F1Score(average="macro"),
    ],
    lambda x, y: tf.one_hot(y, 5),
    lambda logits: tf.nn.softmax(logits),
)


measured(
    "counts_at_thresholds",
    1,
    lambda: [
        METRICS.Precision(),
        METRICS.Recall(thresholds=[0.3, 0.6]),
        METRICS.TruePositives(),
        METRICS.FalseNegatives(),
        METRICS.BinaryAccuracy(),
        METRICS.BinaryIoU([0, 1]),
    ],
    lambda x, y: (y % 2)[:, None],
    lambda logits: tf.sigmoid(logits),
)


measured(
    "curves",
    1,
    lambda: [
        METRICS.AUC(num_thresholds=20),
        METRICS.AUC(num_thresholds=20, curve="PR", name="pr"),
        METRICS.PrecisionAtRecall(0.5, num_thresholds=20),
        METRICS.SensitivityAtSpecificity(0.5, num_thresholds=20),
    ],
    lambda x, y: (y % 2)[:, None],
    lambda logits: tf.sigmoid(logits),
)


measured(
    "regression",
    4,
    lambda: [
        METRICS.MeanSquaredError(),
        METRICS.RootMeanSquaredError(),
        METRICS.MeanAbsoluteError(),
        METRICS.R2Score(),
        METRICS.CosineSimilarity(),
        METRICS.LogCoshError(),
        METRICS.PearsonCorrelation(),
    ],
    lambda x, y: x[:, :4] + 0.1,
    lambda outputs: outputs,
)


measured(
    "overlaps",
    5,
    lambda: [METRICS.MeanIoU(5), METRICS.IoU(5, [1, 2])],
    lambda x, y: y,
    lambda logits: tf.argmax(logits, axis=1),
)


def evaluating(name: str, batch: Batch) -> Callable[[Any], Any]:
    """Register a step that only counts: a function of the model, and the variables it keeps."""

    def add(function: Any) -> Any:
        @case(f"metrics/{name}")
        def build() -> BuiltStep:
            model = mlp(6, 10, 5)
            step, kept = function(model)
            return BuiltStep(step=step, batch=batch, variables=[*state(model), *kept])

        return function

    return add


@evaluating("confusion_matrix_by_hand", to_classify())
def confusion(model: Any) -> Any:
    matrix = tf.Variable(tf.zeros([5, 5], tf.int32), trainable=False)

    def step(x: Any, y: Any) -> Any:
        guess = tf.argmax(model(x, training=False), axis=-1, output_type=tf.int32)
        matrix.assign_add(tf.math.confusion_matrix(y, guess, num_classes=5))
        return matrix.value()

    return step, [matrix]


@evaluating("running_variance_by_hand", of_shape(6))
def running_variance(model: Any) -> Any:
    count, mean, spread = tf.Variable(0.0), tf.Variable(tf.zeros([5])), tf.Variable(tf.zeros([5]))

    def step(x: Any) -> Any:
        outputs = model(x)
        number = tf.cast(tf.shape(x)[0], tf.float32)
        batch_mean, batch_variance = tf.nn.moments(outputs, axes=[0])
        apart, total = batch_mean - mean, count + number
        spread.assign_add(batch_variance * number + apart**2 * count * number / total)
        mean.assign_add(apart * number / total)
        count.assign(total)
        return spread / count

    return step, [count, mean, spread]


@evaluating("running_covariance_and_extremes", of_shape(6))
def running_covariance(model: Any) -> Any:
    outer, least = tf.Variable(tf.zeros([5, 5])), tf.Variable(tf.fill([5], 1e9))
    most = tf.Variable(tf.fill([5], -1e9))

    def step(x: Any) -> None:
        outputs = model(x)
        outer.assign_add(tf.matmul(outputs, outputs, transpose_a=True))
        least.assign(tf.minimum(least, tf.reduce_min(outputs, axis=0)))
        most.assign(tf.maximum(most, tf.reduce_max(outputs, axis=0)))

    return step, [outer, least, most]


@evaluating("calibration_in_bins", to_classify())
def calibration(model: Any) -> Any:
    counts, right = tf.Variable(tf.zeros([6])), tf.Variable(tf.zeros([6]))
    sure = tf.Variable(tf.zeros([6]))

    def step(x: Any, y: Any) -> Any:
        shares = tf.nn.softmax(3.0 * model(x))
        confidence = tf.reduce_max(shares, axis=1)
        hit = tf.cast(tf.argmax(shares, 1, output_type=tf.int32) == y, tf.float32)
        place = tf.cast(confidence * 6, tf.int32)
        counts.assign_add(tf.math.unsorted_segment_sum(tf.ones_like(hit), place, 6))
        right.assign_add(tf.math.unsorted_segment_sum(hit, place, 6))
        sure.assign_add(tf.math.unsorted_segment_sum(confidence, place, 6))
        return tf.reduce_sum(tf.abs(right - sure)) / tf.reduce_sum(counts)

    return step, [counts, right, sure]


@evaluating("histogram_and_quantiles", of_shape(6))
def histogram(model: Any) -> Any:
    counts = tf.Variable(tf.zeros([8], tf.int32), trainable=False)

    def step(x: Any) -> Any:
        outputs = model(x)
        counts.assign_add(tf.histogram_fixed_width(outputs, [-2.0, 2.0], nbins=8))
        ordered = tf.sort(tf.reshape(outputs[:, 0], [-1]))
        size = tf.shape(ordered)[0]
        return {
            "middle": ordered[size // 2],
            "tail": ordered[size * 9 // 10],
            "seen": counts.value(),
        }

    return step, [counts]


@evaluating("found_among_the_batch", of_shape(6))
def retrieval(model: Any) -> Any:
    recall = METRICS.Mean(name="recall")
    sums = METRICS.Sum(name="sums")

    def step(x: Any) -> Any:
        z = tf.math.l2_normalize(model(x), axis=1)
        other = tf.math.l2_normalize(model(x + 0.3 * tf.sin(5.0 * x)), axis=1)
        scores = tf.matmul(z, other, transpose_b=True)
        found = tf.math.in_top_k(tf.range(tf.shape(x)[0]), scores, k=2)
        recall.update_state(tf.cast(found, tf.float32))
        sums.update_state(tf.linalg.diag_part(scores))
        return {"recall": recall.result(), "sum": sums.result()}, found

    return step, state(recall, sums)


@case("metrics/weighted_and_reset")
def weighted() -> BuiltStep:
    model = mlp(6, 10, 5)
    accuracy, mean = (
        METRICS.SparseCategoricalAccuracy(),
        METRICS.MeanMetricWrapper(fn=lambda y, p: tf.abs(tf.cast(y, tf.float32) - p), name="apart"),
    )
    optimizer = sgd(model.trainable_variables)

    def step(x: Any, y: Any, weight: Any) -> Any:
        accuracy.reset_state()
        with tf.GradientTape() as tape:
            logits = model(x)
            loss = ENTROPY(y, logits, sample_weight=weight)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        accuracy.update_state(y, logits, sample_weight=weight)
        mean.update_state(y[:, None], logits[:, :1], sample_weight=weight[:, None])
        return [loss, [accuracy.result(), (mean.result(),)]]

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), integers(rng, 5, n), rng.uniform(0.2, 2, n).astype("float32")

    return BuiltStep(step=step, batch=batch, variables=state(model, optimizer, accuracy, mean))
