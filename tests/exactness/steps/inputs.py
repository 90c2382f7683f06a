"""Arguments of every form: structures, scalars, sparse, ragged, strings, whole tables."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from .case import BuiltStep, case, integers, learn, mlp, normal, sgd, state

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train(tape: Any, loss: Any, model: Any, optimizer: Any) -> None:
    """Apply the gradients of a loss."""
    weights = model.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)


@case("inputs/dict_with_weights_of_classes")
def dict_with_class_weights() -> BuiltStep:
    model = mlp(6, 10, 8)

    def loss_of(batch: Any) -> Any:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["y"], model(batch["x"]))
        weights = tf.gather(batch["class_weights"], batch["y"])
        return tf.reduce_sum(weights * each) / tf.reduce_sum(weights)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        weights = rng.uniform(0.5, 2, 8).astype("float32")
        return ({"x": normal(rng, n, 6), "y": integers(rng, 8, n), "class_weights": weights},)

    return learn(loss_of, model, batch)


@case("inputs/table_as_long_as_the_batch")
def table_as_long() -> BuiltStep:
    model = mlp(6, 10, 4)

    def loss_of(x: Any, ids: Any, table: Any) -> Any:
        return tf.reduce_mean((model(x) - tf.gather(table, ids)) ** 2) + 0.1 * tf.reduce_mean(table)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), integers(rng, 3, n), normal(rng, 24, 4)

    return learn(loss_of, model, batch, in_axes=(0, 0, None))


@case("inputs/features_as_many_as_samples")
def as_wide_as_the_batch() -> BuiltStep:
    model = mlp(24, 24, 9, 3)

    def loss_of(x: Any, y: Any) -> Any:
        centred = x - tf.reduce_mean(x, axis=1, keepdims=True)
        return tf.reduce_mean((y - model(centred)) ** 2) + tf.nn.l2_loss(
            tf.reduce_mean(model(x), axis=0)
        )

    return learn(loss_of, model, lambda rng, n: (normal(rng, n, 24), normal(rng, n, 3)))


@case("inputs/nested_tuples")
def nested() -> BuiltStep:
    first, second = mlp(6, 4), mlp(5, 4)
    weights = [*first.trainable_variables, *second.trainable_variables]
    optimizer = sgd(weights)

    def step(batch: Any) -> Any:
        (x, (z,)), [y, weight] = batch
        with tf.GradientTape() as tape:
            each = tf.reduce_mean((y - first(x) - second(z)) ** 2, axis=1)
            loss = tf.reduce_sum(weight * each) / tf.reduce_sum(weight)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return (loss, [each])

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        weight = rng.uniform(0.2, 2, n).astype("float32")
        return (((normal(rng, n, 6), (normal(rng, n, 5),)), [normal(rng, n, 4), weight]),)

    return BuiltStep(step=step, batch=batch, variables=[*weights, *optimizer.variables])


@case("inputs/scalar_tensors_and_a_matrix")
def scalars() -> BuiltStep:
    model = mlp(6, 10, 4)
    optimizer = sgd(model.trainable_variables)

    def step(x: Any, y: Any, rate: Any, number: Any, mixing: Any) -> Any:
        optimizer.learning_rate.assign(rate)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - model(x) @ mixing) ** 2)
        train(tape, loss, model, optimizer)
        return loss * tf.cast(number, tf.float32)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        rate = tf.constant(rng.uniform(0.05, 0.2), tf.float32)
        mixing = (np.eye(4) + 0.1 * normal(rng, 4, 4)).astype("float32")
        return normal(rng, n, 6), normal(rng, n, 4), rate, tf.constant(7), mixing

    return BuiltStep(step=step, batch=batch, variables=state(model, optimizer))


@case("inputs/python_bool_and_number")
def python_values() -> BuiltStep:
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dropout(0.3, seed=1), layers.Dense(4)]
    )
    optimizer = sgd(model.trainable_variables)

    def step(x: Any, y: Any, training: bool, power: int, missing: None) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(y - model(x, training=training)) ** power)
        if training:
            train(tape, loss, model, optimizer)
        return loss

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), normal(rng, n, 4), n > 5, 2, None

    return BuiltStep(step=step, batch=batch, variables=state(model, optimizer))


@case("inputs/double_precision")
def double_precision() -> BuiltStep:
    model = mlp(6, 10, 4, dtype="float64")

    def loss_of(x: Any, y: Any) -> Any:
        outputs = model(x)
        return tf.sqrt(tf.reduce_mean((y - outputs) ** 2)) + 0.5 * tf.reduce_mean(outputs**2)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return rng.normal(size=(n, 6)), rng.normal(size=(n, 4))

    return learn(loss_of, model, batch, tolerance=1e-12)


@case("inputs/bytes_of_images")
def image_bytes() -> BuiltStep:
    model = keras.Sequential(
        [
            keras.Input((6, 6, 3)),
            layers.Rescaling(1 / 127.5, offset=-1),
            layers.Conv2D(4, 3, activation="tanh"),
            layers.Flatten(),
            layers.Dense(5),
        ]
    )

    def loss_of(x: Any, y: Any) -> Any:
        x = tf.image.per_image_standardization(tf.cast(x, tf.float32)) * 40.0
        return ENTROPY(y, model(x, training=True))

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return rng.integers(0, 256, (n, 6, 6, 3)).astype("uint8"), rng.integers(0, 5, n)

    return learn(loss_of, model, batch)


@case("inputs/ragged_rows")
def ragged() -> BuiltStep:
    table = tf.Variable(0.5 * tf.random.stateless_normal([12, 4], seed=[1, 2]))
    head = mlp(4, 5)
    weights = [table, *head.trainable_variables]
    optimizer = sgd(weights)

    def step(words: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            vectors = tf.ragged.map_flat_values(tf.gather, table, words)
            pooled = tf.reduce_sum(vectors, axis=1)
            pooled /= tf.cast(words.row_lengths(), tf.float32)[:, None]
            loss = ENTROPY(y, head(tf.tanh(pooled)))
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss, words.row_lengths()

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        lengths = rng.integers(1, 5, n)
        values = integers(rng, 12, int(lengths.sum()))
        return tf.RaggedTensor.from_row_lengths(values, lengths), integers(rng, 5, n)

    return BuiltStep(step=step, batch=batch, variables=[*weights, *optimizer.variables])


@case("inputs/ragged_rows_made_dense")
def ragged_to_dense() -> BuiltStep:
    model = mlp(5, 10, 4)

    def loss_of(rows: Any, y: Any) -> Any:
        x = rows.to_tensor(shape=[None, 5])
        mask = tf.sequence_mask(rows.row_lengths(), 5, dtype=tf.float32)
        return tf.reduce_sum((y - model(x)) ** 2) / tf.reduce_sum(mask)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        lengths = rng.integers(0, 6, n)
        lengths[0] = 3
        values = normal(rng, int(lengths.sum()))
        return tf.RaggedTensor.from_row_lengths(values, lengths), normal(rng, n, 4)

    return learn(loss_of, model, batch)


@case("inputs/sparse_rows")
def sparse() -> BuiltStep:
    w = tf.Variable(0.5 * tf.random.stateless_normal([12, 5], seed=[1, 2]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = ENTROPY(y, tf.sparse.sparse_dense_matmul(x, w))
        w.assign_sub(0.3 * tape.gradient(loss, w))
        return loss, tf.sparse.reduce_sum(x, axis=1)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        dense = np.where(rng.uniform(size=(n, 12)) < 0.3, rng.normal(size=(n, 12)), 0)
        return tf.sparse.from_dense(dense.astype("float32")), integers(rng, 5, n)

    return BuiltStep(step=step, batch=batch, variables=[w])


NAMES = np.array(["red", "green", "blue", "grey", "unknown"])


def names(rng: Any, n: int) -> tuple[Any, ...]:
    """Return strings and labels."""
    return tf.constant(rng.choice(NAMES, n)), integers(rng, 5, n)


@case("inputs/strings_in_a_static_table")
def strings() -> BuiltStep:
    keys = tf.constant(["red", "green", "blue", "grey"])
    initial = tf.lookup.KeyValueTensorInitializer(keys, tf.range(4, dtype=tf.int64))
    lookup = tf.lookup.StaticHashTable(initial, default_value=4)
    table = tf.Variable(tf.random.stateless_normal([5, 5], seed=[1, 2]))

    def step(colours: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.gather(table, lookup.lookup(colours))
            loss = ENTROPY(y, logits)
        g = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(0.5 * g.values, g.indices))
        return loss, tf.gather(keys, tf.minimum(tf.argmax(logits, axis=1), 3))

    return BuiltStep(step=step, batch=names, variables=[table])


@case("inputs/strings_hashed_and_split")
def hashed() -> BuiltStep:
    table = tf.Variable(tf.random.stateless_normal([16, 5], seed=[1, 2]))

    def step(colours: Any, y: Any) -> Any:
        bucket = tf.strings.to_hash_bucket_fast(colours, 16)
        length = tf.cast(tf.strings.length(colours), tf.float32)[:, None]
        with tf.GradientTape() as tape:
            loss = ENTROPY(y, tf.nn.embedding_lookup(table, bucket) + 0.1 * length)
        table.assign_sub(0.5 * tf.convert_to_tensor(tape.gradient(loss, table)))
        return {"loss": loss, "first": tf.strings.substr(colours, 0, 1)}

    return BuiltStep(step=step, batch=names, variables=[table])


@case("inputs/preprocessing_layers")
def preprocessing() -> BuiltStep:
    rng = np.random.default_rng(4)
    normalise = layers.Normalization(mean=[0.1] * 4, variance=[1.5] * 4)
    bins = layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.5], output_mode="one_hot")
    colours = layers.StringLookup(vocabulary=list(NAMES[:4]), output_mode="one_hot")
    hashes = layers.Hashing(6, output_mode="one_hot")
    normalise(normal(rng, 2, 4))
    model = mlp(4 + 4 + 5 + 6, 8, 5)

    def loss_of(numbers: Any, measure: Any, name: Any, y: Any) -> Any:
        parts = [normalise(numbers), bins(measure), colours(name), hashes(name)]
        return ENTROPY(y, model(tf.concat([tf.cast(p, tf.float32) for p in parts], axis=1)))

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        name, y = names(rng, n)
        return normal(rng, n, 4), normal(rng, n, 1), name, y

    return learn(loss_of, model, batch)


@case("inputs/waves_through_a_fourier_transform")
def waves() -> BuiltStep:
    model = mlp(18, 10, 5)

    def loss_of(wave: Any, y: Any) -> Any:
        spectrum = tf.signal.stft(wave, frame_length=8, frame_step=4)
        loud = tf.math.log(tf.abs(spectrum) ** 2 + 0.1)
        pooled = tf.concat([tf.reduce_mean(loud, axis=1), tf.reduce_max(loud, axis=1)], axis=1)
        pooled = tf.pad(pooled, [[0, 0], [0, 8]])
        return ENTROPY(y, model(pooled))

    return learn(loss_of, model, lambda rng, n: (normal(rng, n, 20), integers(rng, 5, n)))
