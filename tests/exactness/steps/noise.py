"""Noise of every kind, penalties, and samples of the batch that are mixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from exactness.models import sequential

from .case import (
    BuiltStep,
    case,
    columns,
    integers,
    learn,
    learned,
    mlp,
    normals,
    to_classify,
    to_regress,
    whole,
    written,
)

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


images = columns(normals(8, 8, 2), whole(5))


def noisy(name: str, middle: Callable[[], Any]) -> None:
    """Register a step with a layer of noise between two dense ones."""

    @case(f"regularisation/{name}")
    def build() -> BuiltStep:
        model = sequential((6,), layers.Dense(12, activation="tanh"), middle(), layers.Dense(5))
        return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, to_classify())


noisy("dropout", lambda: layers.Dropout(0.4))


noisy("dropout_with_seed", lambda: layers.Dropout(0.4, seed=3))


noisy("dropout_shared_by_the_batch", lambda: layers.Dropout(0.4, noise_shape=(1, 12)))


noisy("gaussian_noise", lambda: layers.GaussianNoise(0.3))


noisy("gaussian_dropout", lambda: layers.GaussianDropout(0.3))


noisy("alpha_dropout", lambda: layers.AlphaDropout(0.3))


noisy("activity_penalty", lambda: layers.ActivityRegularization(l1=0.01, l2=0.02))


@learned(
    "regularisation/spatial_dropout",
    images,
    lambda: sequential(
        (8, 8, 2),
        layers.Conv2D(6, 3, activation="tanh"),
        layers.SpatialDropout2D(0.4),
        layers.GlobalAveragePooling2D(),
        layers.Dense(5),
    ),
)
def spatial_dropout(model: Any, x: Any, y: Any) -> Any:
    return ENTROPY(y, model(x, training=True))


@learned(
    "regularisation/dropout_of_tf_nn",
    to_classify(),
    lambda: (mlp(6, 12, 12), mlp(12, 5), tf.Variable(0, trainable=False)),
)
def dropout_of_tf_nn(model: Any, head: Any, count: Any, x: Any, y: Any) -> Any:
    seed = tf.stack([count, 1])
    hidden = tf.nn.experimental.stateless_dropout(tf.tanh(model(x)), rate=0.3, seed=seed)
    count.assign_add(1)
    return ENTROPY(y, head(hidden))


@written(
    "regularisation/stateful_dropout_of_tf_nn",
    to_classify(),
    lambda: tf.Variable(tf.random.stateless_normal([6, 5], seed=[1, 2])),
    stateful_random=True,
)
def stateful_dropout(w: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        logits = tf.nn.dropout(x, rate=0.3) @ w
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    w.assign_sub(0.3 * tape.gradient(loss, w))
    return loss


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
    entropy = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)

    def loss_of(x: Any, y: Any) -> Any:
        loss = entropy(tf.one_hot(y, 5), model(x, training=True))
        loss += tf.add_n(model.losses)
        return loss

    return learn(loss_of, model, to_classify())


@learned("regularisation/weight_decay_by_hand_in_the_loss", to_regress(), lambda: mlp(6, 12, 4))
def weight_decay(model: Any, x: Any, y: Any) -> Any:
    decay = tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables if "kernel" in v.path])
    return tf.reduce_mean(tf.square(y - model(x))) + 1e-2 * decay


@learned(
    "regularisation/gradient_of_outputs_by_inputs",
    to_regress(outputs=1),
    lambda: mlp(6, 12, 1),
    same_bits=False,
)
def input_gradients(model: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = model(x)
    slope = tape.gradient(outputs, x)
    return tf.reduce_mean((y - outputs) ** 2) + 0.1 * tf.reduce_mean(
        tf.reduce_sum(slope**2, axis=1)
    )


@learned("regularisation/decorrelated_features", to_regress(), lambda: (mlp(6, 12, 7), mlp(7, 4)))
def decorrelated(body: Any, head: Any, x: Any, y: Any) -> Any:
    hidden = tf.tanh(body(x, training=True))
    centred = hidden - tf.reduce_mean(hidden, axis=0, keepdims=True)
    size = tf.cast(tf.shape(x)[0], tf.float32)
    covariance = tf.matmul(centred, centred, transpose_a=True) / size
    off = tf.reduce_sum(covariance**2) - tf.reduce_sum(tf.linalg.diag_part(covariance) ** 2)
    return tf.reduce_mean(tf.square(y - head(hidden))) + 0.5 * off


@learned("mixing/mixup", to_classify(), lambda: (mlp(6, 12, 5), tf.Variable(0, trainable=False)))
def mixup(model: Any, count: Any, x: Any, y: Any) -> Any:
    size = tf.shape(x)[0]
    order = tf.random.experimental.stateless_shuffle(tf.range(size), seed=tf.stack([count, 2]))
    rate = tf.random.stateless_uniform([size, 1], seed=tf.stack([count, 3]))
    count.assign_add(1)
    one_hot = tf.one_hot(y, 5)
    mixed = rate * x + (1 - rate) * tf.gather(x, order)
    wanted = rate * one_hot + (1 - rate) * tf.gather(one_hot, order)
    return tf.reduce_mean(
        tf.nn.softmax_cross_entropy_with_logits(labels=wanted, logits=model(mixed))
    )


@learned("mixing/mixup_with_reversed_batch", to_classify(), lambda: mlp(6, 12, 5))
def reversed_mixup(model: Any, x: Any, y: Any) -> Any:
    logits = model(0.7 * x + 0.3 * x[::-1])
    return 0.7 * ENTROPY(y, logits) + 0.3 * ENTROPY(tf.reverse(y, axis=[0]), logits)


@learned(
    "mixing/mixup_with_stateful_shuffle", to_classify(), lambda: mlp(6, 12, 5), stateful_random=True
)
def shuffled(model: Any, x: Any, y: Any) -> Any:
    order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
    logits = model(0.7 * x + 0.3 * tf.gather(x, order))
    return 0.7 * ENTROPY(y, logits) + 0.3 * ENTROPY(tf.gather(y, order), logits)


@learned(
    "mixing/mixup_of_hidden_layers",
    to_classify(),
    lambda: (mlp(6, 12, 8), mlp(8, 5), keras.random.SeedGenerator(8)),
)
def manifold_mixup(body: Any, head: Any, seeds: Any, x: Any, y: Any) -> Any:
    hidden = tf.tanh(body(x))
    order = keras.random.shuffle(tf.range(tf.shape(x)[0]), seed=seeds)
    rate = keras.random.beta((), 2.0, 2.0, seed=seeds)
    logits = head(rate * hidden + (1 - rate) * tf.gather(hidden, order))
    return rate * ENTROPY(y, logits) + (1 - rate) * ENTROPY(tf.gather(y, order), logits)


@learned(
    "mixing/cutmix",
    images,
    lambda: (
        sequential(
            (8, 8, 2), layers.Conv2D(4, 3, activation="tanh"), layers.Flatten(), layers.Dense(5)
        ),
        tf.Variable(0, trainable=False),
    ),
)
def cutmix(model: Any, count: Any, x: Any, y: Any) -> Any:
    size = tf.shape(x)[0]
    seed = tf.stack([count, 7])
    corner = tf.random.stateless_uniform([size, 2], seed=seed, maxval=5, dtype=tf.int32)
    rows = tf.range(8)[None, :, None]
    columns = tf.range(8)[None, None]
    top, left = corner[:, :1, None], corner[:, 1:, None]
    inside = (rows >= top) & (rows < top + 4) & (columns >= left) & (columns < left + 4)
    partner = tf.argsort(tf.random.stateless_uniform([size], seed=seed + 1))
    mixed = tf.where(inside[..., None], tf.gather(x, partner), x)
    kept = 1.0 - tf.reduce_mean(tf.cast(inside, tf.float32), axis=[1, 2])
    one_hot = tf.one_hot(y, 5)
    wanted = kept[:, None] * one_hot + (1 - kept[:, None]) * tf.gather(one_hot, partner)
    count.assign_add(1)
    return tf.reduce_mean(
        keras.losses.categorical_crossentropy(wanted, model(mixed), from_logits=True)
    )


@case("mixing/augmentation_layers")
def augmentation() -> BuiltStep:
    augment = keras.Sequential(
        [
            layers.RandomFlip("horizontal", seed=1),
            layers.RandomTranslation(0.2, 0.2, seed=2),
            layers.RandomContrast(0.3, seed=4),
        ]
    )
    augment.build((None, 8, 8, 2))
    model = sequential(
        (8, 8, 2),
        layers.Conv2D(4, 3, activation="tanh"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(5),
    )
    return learn(
        lambda x, y: ENTROPY(y, model(augment(x, training=True), training=True)),
        model,
        images,
        extra=[augment],
    )


@case("mixing/augmentation_of_tf_image_for_each_sample")
def tf_image() -> BuiltStep:
    model = sequential(
        (6, 6, 2), layers.Conv2D(4, 3, activation="tanh"), layers.Flatten(), layers.Dense(5)
    )

    def augment(arguments: Any) -> Any:
        image, seed = arguments
        image = tf.image.stateless_random_crop(image, [6, 6, 2], seed)
        image = tf.image.stateless_random_flip_left_right(image, seed)
        return tf.image.stateless_random_brightness(image, 0.3, seed)

    def loss_of(x: Any, y: Any, seeds: Any) -> Any:
        moved = tf.map_fn(augment, (x, seeds), fn_output_signature=tf.float32)
        return ENTROPY(y, model(moved, training=True))

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return *images(rng, n), integers(rng, 1000, n, 2)

    return learn(loss_of, model, batch)
