"""Steps that only look: losses, counts, predictions and structures of all of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from .case import (
    Batch,
    BuiltStep,
    case,
    integers,
    mlp,
    normal,
    of_shape,
    state,
    to_classify,
    to_regress,
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


@case("evaluation/several_passes_with_dropout")
def several_passes() -> BuiltStep:
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dropout(0.4, seed=2), layers.Dense(3)]
    )

    def step(x: Any) -> Any:
        passes = tf.stack([tf.nn.softmax(model(x, training=True)) for _ in range(4)])
        return passes, tf.reduce_mean(passes, axis=0), tf.math.reduce_std(passes, axis=0)

    return BuiltStep(step=step, batch=of_shape(6), variables=state(model))


@case("evaluation/votes_of_the_nearest_in_a_memory")
def nearest() -> BuiltStep:
    model = mlp(6, 10, 4)
    memory = tf.Variable(tf.random.stateless_normal([30, 4], seed=[1, 2]), trainable=False)
    labels = tf.Variable(tf.range(30) % 5, trainable=False)
    hits = keras.metrics.Mean()

    def step(x: Any, y: Any) -> Any:
        scores = tf.matmul(model(x), memory, transpose_b=True)
        near, rows = tf.math.top_k(scores, k=5)
        votes = tf.one_hot(tf.gather(labels, rows), 5) * tf.nn.softmax(near)[..., None]
        guess = tf.argmax(tf.reduce_sum(votes, axis=1), axis=1, output_type=tf.int32)
        hits.update_state(guess == y)
        return guess, hits.result()

    return BuiltStep(
        step=step, batch=to_classify(), variables=[*state(model, hits), memory, labels]
    )


@case("evaluation/test_step_with_trackers_and_batchnorm")
def test_step() -> BuiltStep:
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dense(5)]
    )
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
