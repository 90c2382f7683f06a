"""Means and sums over the batch, scaled and combined in the ways that people scale them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .case import BuiltStep, case, learn, mlp, normal, sgd, state, to_regress

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


@case("losses/tenth_of_mean_over_ten_micro_batches")
def micro_batches() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
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

    return BuiltStep(
        step=step, batch=to_regress(), variables=state(model, optimizer), sizes=(30, 30, 20, 30, 10)
    )


@case("losses/importance_weights_that_sum_to_one")
def importance_weights() -> BuiltStep:
    model = mlp(6, 12, 4)

    def loss_of(x: Any, y: Any, weight: Any) -> Any:
        each = tf.reduce_mean(tf.square(y - model(x)), axis=-1)
        return tf.reduce_sum(weight / tf.reduce_sum(weight) * each)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), normal(rng, n, 4), rng.uniform(0.1, 2, n).astype("float32")

    return learn(loss_of, model, batch)


@case("losses/divided_by_its_running_mean")
def divided_by_running_mean() -> BuiltStep:
    model = mlp(6, 12, 4)
    running = tf.Variable(1.0, trainable=False)

    def loss_of(x: Any, y: Any) -> Any:
        value = tf.reduce_mean(tf.square(y - model(x)))
        running.assign(0.9 * running + 0.1 * tf.stop_gradient(value))
        return value / running

    return learn(loss_of, model, to_regress(), extra=[running])
