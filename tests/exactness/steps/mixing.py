"""Mixing samples of the batch with one another, and augmenting them inside the step."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from .case import BuiltStep, case, integers, learn, mlp, normal, to_classify

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images(rng: Any, n: int) -> tuple[Any, ...]:
    """Return small images with labels out of five."""
    return normal(rng, n, 8, 8, 2), integers(rng, 5, n)


@case("mixing/mixup")
def mixup() -> BuiltStep:
    model = mlp(6, 12, 5)
    count = tf.Variable(0, trainable=False)

    def loss_of(x: Any, y: Any) -> Any:
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

    return learn(loss_of, model, to_classify(), extra=[count])


@case("mixing/mixup_with_reversed_batch")
def reversed_mixup() -> BuiltStep:
    model = mlp(6, 12, 5)

    def loss_of(x: Any, y: Any) -> Any:
        logits = model(0.7 * x + 0.3 * x[::-1])
        return 0.7 * ENTROPY(y, logits) + 0.3 * ENTROPY(tf.reverse(y, axis=[0]), logits)

    return learn(loss_of, model, to_classify())


@case("mixing/mixup_with_stateful_shuffle")
def shuffled() -> BuiltStep:
    model = mlp(6, 12, 5)

    def loss_of(x: Any, y: Any) -> Any:
        order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
        logits = model(0.7 * x + 0.3 * tf.gather(x, order))
        return 0.7 * ENTROPY(y, logits) + 0.3 * ENTROPY(tf.gather(y, order), logits)

    return learn(loss_of, model, to_classify(), stateful_random=True)


@case("mixing/mixup_of_hidden_layers")
def manifold_mixup() -> BuiltStep:
    body, head = mlp(6, 12, 8), mlp(8, 5)
    seeds = keras.random.SeedGenerator(8)

    def loss_of(x: Any, y: Any) -> Any:
        hidden = tf.tanh(body(x))
        order = keras.random.shuffle(tf.range(tf.shape(x)[0]), seed=seeds)
        rate = keras.random.beta((), 2.0, 2.0, seed=seeds)
        logits = head(rate * hidden + (1 - rate) * tf.gather(hidden, order))
        return rate * ENTROPY(y, logits) + (1 - rate) * ENTROPY(tf.gather(y, order), logits)

    whole = keras.Sequential([body, head])
    return learn(loss_of, whole, to_classify(), extra=[seeds.state])


@case("mixing/cutmix")
def cutmix() -> BuiltStep:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, activation="tanh"),
            layers.Flatten(),
            layers.Dense(5),
        ]
    )
    count = tf.Variable(0, trainable=False)

    def loss_of(x: Any, y: Any) -> Any:
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

    return learn(loss_of, model, images, extra=[count])


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
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, activation="tanh"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5),
        ]
    )
    return learn(
        lambda x, y: ENTROPY(y, model(augment(x, training=True), training=True)),
        model,
        images,
        extra=[augment],
    )


@case("mixing/augmentation_of_tf_image_for_each_sample")
def tf_image() -> BuiltStep:
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, activation="tanh"),
            layers.Flatten(),
            layers.Dense(5),
        ]
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
