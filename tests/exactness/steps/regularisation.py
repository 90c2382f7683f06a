"""Noise of every kind, mixing of samples, and penalties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from .case import BuiltStep, case, integers, learn, mlp, normal, sgd, state, to_classify, to_regress

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images(rng: Any, n: int) -> tuple[Any, ...]:
    """Return small images with labels out of five."""
    return normal(rng, n, 8, 8, 2), integers(rng, 5, n)


def noisy(name: str, middle: Callable[[], Any]) -> None:
    """Register a step with a layer of noise between two dense ones."""

    @case(f"regularisation/{name}")
    def build() -> BuiltStep:
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(12, activation="tanh"), middle(), layers.Dense(5)]
        )
        return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, to_classify())


noisy("dropout", lambda: layers.Dropout(0.4))
noisy("dropout_with_seed", lambda: layers.Dropout(0.4, seed=3))
noisy("dropout_shared_by_the_batch", lambda: layers.Dropout(0.4, noise_shape=(1, 12)))
noisy("gaussian_noise", lambda: layers.GaussianNoise(0.3))
noisy("gaussian_dropout", lambda: layers.GaussianDropout(0.3))
noisy("alpha_dropout", lambda: layers.AlphaDropout(0.3))
noisy("activity_penalty", lambda: layers.ActivityRegularization(l1=0.01, l2=0.02))


@case("regularisation/spatial_dropout")
def spatial_dropout() -> BuiltStep:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(6, 3, activation="tanh"),
            layers.SpatialDropout2D(0.4),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5),
        ]
    )
    return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, images)


@case("regularisation/dropout_of_tf_nn")
def dropout_of_tf_nn() -> BuiltStep:
    model = mlp(6, 12, 12)
    head = mlp(12, 5)
    whole = keras.Sequential([model, head])
    count = tf.Variable(0, trainable=False)

    def loss_of(x: Any, y: Any) -> Any:
        seed = tf.stack([count, 1])
        hidden = tf.nn.experimental.stateless_dropout(tf.tanh(model(x)), rate=0.3, seed=seed)
        count.assign_add(1)
        return ENTROPY(y, head(hidden))

    return learn(loss_of, whole, to_classify(), extra=[count])


@case("regularisation/stateful_dropout_of_tf_nn")
def stateful_dropout() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 5], seed=[1, 2]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.nn.dropout(x, rate=0.3) @ w
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        w.assign_sub(0.3 * tape.gradient(loss, w))
        return loss

    return BuiltStep(step=step, batch=to_classify(), variables=[w], stateful_random=True)


@case("regularisation/stochastic_depth_for_each_sample")
def stochastic_depth() -> BuiltStep:
    class StochasticDepth(layers.Layer):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.rate, self.seed_generator = rate, keras.random.SeedGenerator(1337)

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                keep = 1 - self.rate
                shape = (tf.shape(x)[0],) + (1,) * (len(x.shape) - 1)
                draw = keep + keras.random.uniform(shape, 0, 1, seed=self.seed_generator)
                return (x / keep) * tf.floor(draw)
            return x

    inputs = keras.Input((6,))
    x = layers.Dense(8, activation="tanh")(inputs)
    for rate in (0.2, 0.4):
        x = x + StochasticDepth(rate)(layers.Dense(8, activation="gelu")(x))
    model = keras.Model(inputs, layers.Dense(5)(x))
    return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, to_classify())


@case("regularisation/label_smoothing_and_penalties_of_keras")
def penalties() -> BuiltStep:
    model = mlp(6, 12, 5, kernel_regularizer="l2", activity_regularizer="l1")
    optimizer = sgd(model.trainable_variables)
    entropy = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = entropy(tf.one_hot(y, 5), model(x, training=True))
            loss += tf.add_n(model.losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    return BuiltStep(step=step, batch=to_classify(), variables=state(model, optimizer))


@case("regularisation/weight_decay_by_hand_in_the_loss")
def weight_decay() -> BuiltStep:
    model = mlp(6, 12, 4)

    def loss_of(x: Any, y: Any) -> Any:
        decay = tf.add_n(
            [tf.nn.l2_loss(v) for v in model.trainable_variables if "kernel" in v.path]
        )
        return tf.reduce_mean(tf.square(y - model(x))) + 1e-2 * decay

    return learn(loss_of, model, to_regress())


@case("regularisation/gradient_of_outputs_by_inputs")
def input_gradients() -> BuiltStep:
    model = mlp(6, 12, 1)

    def loss_of(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = model(x)
        slope = tape.gradient(outputs, x)
        return tf.reduce_mean((y - outputs) ** 2) + 0.1 * tf.reduce_mean(
            tf.reduce_sum(slope**2, axis=1)
        )

    return learn(loss_of, model, to_regress(outputs=1), same_bits=False)


@case("regularisation/decorrelated_features")
def decorrelated() -> BuiltStep:
    body, head = mlp(6, 12, 7), mlp(7, 4)
    whole = keras.Sequential([body, head])

    def loss_of(x: Any, y: Any) -> Any:
        hidden = tf.tanh(body(x, training=True))
        centred = hidden - tf.reduce_mean(hidden, axis=0, keepdims=True)
        size = tf.cast(tf.shape(x)[0], tf.float32)
        covariance = tf.matmul(centred, centred, transpose_a=True) / size
        off = tf.reduce_sum(covariance**2) - tf.reduce_sum(tf.linalg.diag_part(covariance) ** 2)
        return tf.reduce_mean(tf.square(y - head(hidden))) + 0.5 * off

    return learn(loss_of, whole, to_regress())
