"""Attention over tokens and patches: masks, tied embeddings, heads of many kinds."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from .case import BuiltStep, adam, case, integers, learn, normal, state

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def tokens(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    """Return tokens of unlike numbers, padded with zeros."""
    every = 1 + integers(rng, 11, n, 7)
    lengths = rng.integers(3, 8, size=(n, 1))
    return (np.where(np.arange(7)[None] < lengths, every, 0).astype("int32"),)


def block(x: Any, **call: Any) -> Any:
    """Return a block of attention and a feed-forward part, normalised before.

    Attention goes without biases: that of the keys would have a gradient of rounding alone.
    """
    before = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 4, use_bias=False)(before, before, **call)
    before = layers.LayerNormalization()(x)
    return x + layers.Dense(8)(layers.Dense(16, activation="gelu")(before))


@case("transformers/causal_with_tied_embedding")
def causal() -> BuiltStep:
    embed = layers.Embedding(12, 8)
    inputs = keras.Input((6,), dtype="int32")
    x = block(embed(inputs), use_causal_mask=True)
    model = keras.Model(inputs, layers.LayerNormalization()(x))
    optimizer = adam(model.trainable_variables)

    def step(every: Any) -> Any:
        targets = every[:, 1:]
        mask = tf.cast(targets != 0, tf.float32)
        with tf.GradientTape() as tape:
            hidden = model(every[:, :-1], training=True)
            logits = tf.matmul(hidden, embed.embeddings, transpose_b=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
            loss = tf.reduce_sum(each * mask) / tf.reduce_sum(mask)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return {"loss": loss, "perplexity": tf.exp(loss), "tokens": tf.reduce_sum(mask)}

    return BuiltStep(step=step, batch=tokens, variables=state(model, optimizer))


@case("transformers/padding_mask_and_mean_over_tokens")
def padded() -> BuiltStep:
    inputs = keras.Input((7,), dtype="int32")
    mask = keras.ops.not_equal(inputs, 0)
    x = layers.Embedding(12, 8)(inputs)
    x = block(x, attention_mask=mask[:, None])
    weight = keras.ops.cast(mask, "float32")[..., None]
    pooled = keras.ops.sum(x * weight, axis=1) / keras.ops.sum(weight, axis=1)
    model = keras.Model(inputs, layers.Dense(5)(layers.Dropout(0.1, seed=1)(pooled)))

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return *tokens(rng, n), integers(rng, 5, n)

    return learn(
        lambda x, y: ENTROPY(y, model(x, training=True)),
        model,
        batch,
        optimizer=adam(model.trainable_variables),
    )


@case("transformers/masked_words")
def masked_words() -> BuiltStep:
    inputs = keras.Input((7,), dtype="int32")
    x = layers.Embedding(13, 8)(inputs)
    model = keras.Model(inputs, layers.Dense(13)(block(x)))
    optimizer = adam(model.trainable_variables)
    seeds = keras.random.SeedGenerator(6)
    tracker = keras.metrics.Mean()

    def step(every: Any) -> Any:
        hidden = keras.random.uniform(tf.shape(every), seed=seeds) < 0.3
        hidden &= every != 0
        with tf.GradientTape() as tape:
            logits = model(tf.where(hidden, 12, every), training=True)
            rows = tf.where(hidden)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(
                tf.gather_nd(every, rows), tf.gather_nd(logits, rows)
            )
            number = tf.maximum(tf.shape(rows)[0], 1)
            loss = tf.reduce_sum(each) / tf.cast(number, tf.float32)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        tracker.update_state(loss, sample_weight=tf.shape(rows)[0])
        return tracker.result()

    return BuiltStep(
        step=step, batch=tokens, variables=[*state(model, optimizer, tracker), seeds.state]
    )


@case("transformers/attention_by_hand_with_einsum")
def by_hand() -> BuiltStep:
    shapes = {"q": [4, 2, 3], "k": [4, 2, 3], "v": [4, 2, 3], "o": [2, 3, 4]}
    w = {
        name: tf.Variable(0.5 * tf.random.stateless_normal(shape, seed=[i, 1]))
        for i, (name, shape) in enumerate(shapes.items())
    }
    optimizer = adam(list(w.values()))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            q, k, v = (tf.einsum("btd,dhf->bthf", x, w[name]) for name in "qkv")
            scores = tf.einsum("bqhf,bkhf->bhqk", q, k) / tf.sqrt(3.0)
            future = tf.linalg.band_part(tf.ones([6, 6]), -1, 0)
            scores = tf.where(future > 0, scores, -1e9)
            mixed = tf.einsum("bhqk,bkhf->bqhf", tf.nn.softmax(scores), v)
            made = x + tf.einsum("bqhf,hfd->bqd", mixed, w["o"])
            loss = tf.reduce_mean(tf.square(made[:, :-1] - x[:, 1:]))
        gradients = tape.gradient(loss, w)
        optimizer.apply([gradients[name] for name in w], list(w.values()))
        return loss, scores

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (normal(rng, n, 6, 4),),
        variables=[*w.values(), *optimizer.variables],
    )


@case("transformers/patches_with_class_token")
def patches() -> BuiltStep:
    class ClassToken(layers.Layer):
        def build(self, shape: Any) -> None:
            self.token = self.add_weight(shape=(1, 1, 8), initializer="random_normal")

        def call(self, x: Any) -> Any:
            return tf.concat([tf.repeat(self.token, tf.shape(x)[0], axis=0), x], axis=1)

    class Positions(layers.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(1, 5, 8), initializer="random_normal")

        def call(self, x: Any) -> Any:
            return x + self.table

    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(8, 4, strides=4)(inputs)
    x = Positions()(ClassToken()(layers.Reshape((4, 8))(x)))
    model = keras.Model(inputs, layers.Dense(5)(block(x)[:, 0]))

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 8, 8, 2), integers(rng, 5, n)

    return learn(
        lambda x, y: ENTROPY(y, model(x, training=True)),
        model,
        batch,
        optimizer=adam(model.trainable_variables),
        # The class token is small, and normalising it magnifies rounding.
        tolerance=1e-4,
    )


@case("transformers/patches_of_tf_image_rebuilt_where_masked")
def masked_patches() -> BuiltStep:
    encoder, decoder = layers.Dense(8, activation="gelu"), layers.Dense(32)
    encoder.build((None, 32))
    decoder.build((None, 8))
    empty = tf.Variable(0.1 * tf.random.stateless_normal([8], seed=[1, 2]))
    weights = [*encoder.trainable_variables, *decoder.trainable_variables, empty]
    optimizer = adam(weights)
    count = tf.Variable(0, trainable=False)

    def step(images: Any) -> Any:
        sizes = [1, 4, 4, 1]
        parts = tf.image.extract_patches(images, sizes, sizes, [1, 1, 1, 1], "VALID")
        parts = tf.reshape(parts, [-1, 4, 32])
        draw = tf.random.stateless_uniform(tf.shape(parts)[:2], seed=tf.stack([count, 1]))
        order = tf.argsort(draw, axis=1)
        kept, hidden = order[:, :2], order[:, 2:]
        count.assign_add(1)
        with tf.GradientTape() as tape:
            seen = encoder(tf.gather(parts, kept, batch_dims=1))
            filler = tf.broadcast_to(empty, tf.shape(seen))
            back = tf.argsort(order, axis=1)
            whole = tf.gather(tf.concat([seen, filler], axis=1), back, batch_dims=1)
            whole += tf.reduce_mean(seen, axis=1, keepdims=True)
            made = tf.gather(decoder(whole), hidden, batch_dims=1)
            wanted = tf.gather(parts, hidden, batch_dims=1)
            loss = tf.reduce_mean(tf.square(made - wanted))
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (normal(rng, n, 8, 8, 2),),
        variables=[*weights, *optimizer.variables, count],
    )


@case("transformers/recurrent_language_model")
def recurrent() -> BuiltStep:
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(12, 6, mask_zero=True),
            layers.GRU(6, return_sequences=True),
            layers.Dense(12),
        ]
    )
    optimizer = adam(model.trainable_variables)
    perplexity, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

    def step(every: Any) -> Any:
        inputs, targets = tf.pad(every[:, :-1], [[0, 0], [1, 0]], constant_values=1), every
        mask = tf.cast(tf.not_equal(targets, 0), tf.float32)
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
            loss = tf.reduce_sum(each * mask) / tf.reduce_sum(mask)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        perplexity.update_state(tf.exp(loss))
        accuracy.update_state(targets, logits, sample_weight=mask)
        return perplexity.result(), accuracy.result()

    return BuiltStep(
        step=step, batch=tokens, variables=state(model, optimizer, perplexity, accuracy)
    )
