"""Arguments of every form, and tensors with a first dimension of their own."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
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
    normal,
    normals,
    of_shape,
    sgd,
    state,
    to_regress,
    trained,
    written,
)

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train(tape: Any, loss: Any, model: Any, optimizer: Any) -> None:
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


@learned(
    "inputs/features_as_many_as_samples",
    lambda rng, n: (normal(rng, n, 24), normal(rng, n, 3)),
    lambda: mlp(24, 24, 9, 3),
)
def as_wide_as_the_batch(model: Any, x: Any, y: Any) -> Any:
    centred = x - tf.reduce_mean(x, axis=1, keepdims=True)
    return tf.reduce_mean((y - model(centred)) ** 2) + tf.nn.l2_loss(
        tf.reduce_mean(model(x), axis=0)
    )


@case("inputs/nested_tuples")
def nested() -> BuiltStep:
    first, second = mlp(6, 4), mlp(5, 4)

    def loss_of(batch: Any) -> Any:
        (x, (z,)), [y, weight] = batch
        each = tf.reduce_mean((y - first(x) - second(z)) ** 2, axis=1)
        loss = tf.reduce_sum(weight * each) / tf.reduce_sum(weight)
        return (loss, [each])

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        weight = rng.uniform(0.2, 2, n).astype("float32")
        return (((normal(rng, n, 6), (normal(rng, n, 5),)), [normal(rng, n, 4), weight]),)

    return learn(loss_of, (first, second), batch)


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
    model = sequential((6,), layers.Dense(8, "tanh"), layers.Dropout(0.3, seed=1), layers.Dense(4))
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
    model = sequential(
        (6, 6, 3),
        layers.Rescaling(1 / 127.5, offset=-1),
        layers.Conv2D(4, 3, activation="tanh"),
        layers.Flatten(),
        layers.Dense(5),
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

    def loss_of(words: Any, y: Any) -> Any:
        vectors = tf.ragged.map_flat_values(tf.gather, table, words)
        pooled = tf.reduce_sum(vectors, axis=1)
        pooled /= tf.cast(words.row_lengths(), tf.float32)[:, None]
        loss = ENTROPY(y, head(tf.tanh(pooled)))
        return loss, words.row_lengths()

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        lengths = rng.integers(1, 5, n)
        values = integers(rng, 12, int(lengths.sum()))
        return tf.RaggedTensor.from_row_lengths(values, lengths), integers(rng, 5, n)

    return learn(loss_of, (table, head), batch)


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


@written(
    "inputs/strings_hashed_and_split",
    names,
    lambda: tf.Variable(tf.random.stateless_normal([16, 5], seed=[1, 2])),
)
def hashed(table: Any, colours: Any, y: Any) -> Any:
    bucket = tf.strings.to_hash_bucket_fast(colours, 16)
    length = tf.cast(tf.strings.length(colours), tf.float32)[:, None]
    with tf.GradientTape() as tape:
        loss = ENTROPY(y, tf.nn.embedding_lookup(table, bucket) + 0.1 * length)
    table.assign_sub(0.5 * tf.convert_to_tensor(tape.gradient(loss, table)))
    return {"loss": loss, "first": tf.strings.substr(colours, 0, 1)}


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


@learned(
    "inputs/waves_through_a_fourier_transform",
    lambda rng, n: (normal(rng, n, 20), integers(rng, 5, n)),
    lambda: mlp(18, 10, 5),
)
def waves(model: Any, wave: Any, y: Any) -> Any:
    spectrum = tf.signal.stft(wave, frame_length=8, frame_step=4)
    loud = tf.math.log(tf.abs(spectrum) ** 2 + 0.1)
    pooled = tf.concat([tf.reduce_mean(loud, axis=1), tf.reduce_max(loud, axis=1)], axis=1)
    pooled = tf.pad(pooled, [[0, 0], [0, 8]])
    return ENTROPY(y, model(pooled))


NUM_DRAWN = 16


def cross_entropy(y: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def seed_of(first: int, drawn: tf.Variable) -> Any:
    """Return a seed that is another one after every draw."""
    return tf.stack([first, drawn.read_value()])


def labelled_and_not(rng: Any, n: int) -> tuple[Any, ...]:
    return normal(rng, n, 6), integers(rng, 5, n), normal(rng, 2 * n + 1, 6)


def graphs(rng: Any, n: int) -> tuple[Any, ...]:
    """Return atoms, bonds, pairs of atoms, the molecule of every atom, and their labels."""
    num_atoms, num_bonds = 3 * n + 1, 5 * n + 2
    return (
        normal(rng, num_atoms, 4),
        normal(rng, num_bonds, 3),
        integers(rng, num_atoms, num_bonds, 2),
        np.sort(integers(rng, n, num_atoms)),
        normal(rng, n, 1),
    )


@learned("other_rows/labelled_and_unlabelled_joined", labelled_and_not, lambda: mlp(6, 10, 5))
def joined(encoder: Any, x: Any, y: Any, u: Any) -> Any:
    logits = encoder(tf.concat([x, u], 0), training=True)
    of_x, of_u = logits[: tf.shape(x)[0]], logits[tf.shape(x)[0] :]
    return cross_entropy(y, of_x) + 0.3 * tf.reduce_mean(tf.nn.softmax(of_u) ** 2)


@learned(
    "other_rows/joined_and_split",
    labelled_and_not,
    lambda: sequential((6,), layers.Dense(10, "tanh"), layers.Dense(5)),
)
def joined_and_split(encoder: Any, x: Any, y: Any, u: Any) -> Any:
    logits = encoder(tf.concat([x, u], 0), training=True)
    of_x, of_u = tf.split(logits, [tf.shape(x)[0], tf.shape(u)[0]])
    return cross_entropy(y, of_x) + 0.1 * tf.reduce_mean(tf.nn.softmax(of_u @ tf.transpose(of_x)))


@learned(
    "other_rows/encoded_apart",
    labelled_and_not,
    lambda: sequential(
        (6,), layers.Dense(10, "tanh"), layers.BatchNormalization(), layers.Dense(5)
    ),
)
def apart(encoder: Any, x: Any, y: Any, u: Any) -> Any:
    of_x, of_u = encoder(x, training=True), encoder(u, training=True)
    alike = tf.nn.softmax(of_u @ tf.transpose(of_x), axis=1)
    return cross_entropy(y, of_x) + tf.reduce_mean(alike @ of_x * of_u) * 0.1


@written(
    "other_rows/loss_divided_by_a_static_size", labelled_and_not, lambda: trained(mlp(6, 10, 5))
)
def static_size(encoder: Any, optimizer: Any, x: Any, y: Any, u: Any) -> Any:
    with tf.GradientTape() as tape:
        logits = encoder(tf.concat([x, u], 0), training=True)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits[: x.shape[0]])
        loss = tf.reduce_sum(each) / x.shape[0]
        loss += tf.reduce_mean(tf.nn.softmax(logits[x.shape[0] :]) ** 2)
    weights = encoder.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)
    return loss / float(x.shape[0]), tf.reduce_mean(logits, 1)


@case("other_rows/recurrent_on_joined_batches")
def recurrent() -> BuiltStep:
    model = sequential((4, 3), layers.GRU(5), layers.Dense(5))

    def loss_of(x: Any, y: Any, u: Any) -> Any:
        logits = model(tf.concat([x, u], 0), training=True)
        return cross_entropy(y, logits[: tf.shape(y)[0]]) + 0.1 * tf.reduce_mean(logits**2)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, 2 * n, 4, 3), integers(rng, 5, 2 * n), normal(rng, n, 4, 3)

    return learn(loss_of, model, batch)


@case("other_rows/gan_of_noise_of_a_known_size")
def gan() -> BuiltStep:
    generator = sequential(
        (3,),
        layers.Dense(2 * 2 * 3, "tanh"),
        layers.Reshape((2, 2, 3)),
        layers.Conv2DTranspose(4, 4, strides=2, padding="same"),
        layers.BatchNormalization(),
        layers.Conv2D(1, 3, padding="same", activation="tanh"),
    )
    discriminator = sequential(
        (4, 4, 1),
        layers.Conv2D(4, 3, strides=2, padding="same", activation="tanh"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(1),
    )
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    of_generator, of_critic = (
        sgd(generator.trainable_variables),
        sgd(discriminator.trainable_variables),
    )
    drawn = tf.Variable(tf.constant(0))

    def noise() -> Any:
        drawn.assign_add(1)
        return tf.random.stateless_normal([NUM_DRAWN, 3], seed_of(7, drawn))

    def step(real: Any) -> Any:
        made = generator(noise(), training=True)
        labels = tf.concat([tf.ones([NUM_DRAWN, 1]), tf.zeros([tf.shape(real)[0], 1])], 0)
        labels += 0.05 * tf.random.stateless_uniform(tf.shape(labels), seed_of(3, drawn))
        with tf.GradientTape() as tape:
            loss = entropy(labels, discriminator(tf.concat([made, real], 0), training=True))
        weights = discriminator.trainable_variables
        of_critic.apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            fooled = discriminator(generator(noise(), training=True), training=True)
            of_made = entropy(tf.zeros([NUM_DRAWN, 1]), fooled)
        weights = generator.trainable_variables
        of_generator.apply(tape.gradient(of_made, weights), weights)
        return loss, of_made, made

    return BuiltStep(
        step=step,
        batch=of_shape(4, 4, 1),
        variables=state(generator, discriminator, of_generator, of_critic, drawn),
        tolerance=1e-4,  # biases near zero
    )


@case("other_rows/messages_between_atoms")
def messages() -> BuiltStep:
    message, update, readout = mlp(7, 8, 4), mlp(8, 8, 4), mlp(4, 6, 1)

    def loss_of(atoms: Any, bonds: Any, pairs: Any, molecules: Any, y: Any) -> Any:
        num_atoms = tf.shape(atoms)[0]
        for _ in range(2):
            sent = message(tf.concat([tf.gather(atoms, pairs[:, 1]), bonds], 1))
            heard = tf.math.unsorted_segment_sum(sent, pairs[:, 0], num_atoms)
            atoms = update(tf.concat([atoms, 0.3 * heard], 1))
        whole = tf.math.unsorted_segment_mean(atoms, molecules, tf.shape(y)[0])
        return tf.reduce_mean((readout(whole) - y) ** 2)

    built = learn(loss_of, readout, graphs, extra=[message, update])
    return built


@case("other_rows/dense_behind_a_sort_of_the_batch")
def behind_a_sort() -> BuiltStep:
    before, behind = mlp(6, 8, 6), mlp(6, 8, 4)

    def loss_of(x: Any, y: Any) -> Any:
        ranked = tf.sort(before(x), axis=0)
        return tf.reduce_mean((behind(ranked) - tf.sort(y, axis=0)) ** 2)

    return learn(loss_of, behind, to_regress(), extra=[before])


@case("other_rows/rows_that_the_data_chooses")
def chosen() -> BuiltStep:
    model, behind = mlp(6, 8, 6), mlp(6, 8, 4)

    def loss_of(x: Any, y: Any) -> Any:
        keep = y[:, 0] > -0.5
        kept = behind(tf.boolean_mask(model(x), keep))
        return tf.reduce_sum((kept - tf.boolean_mask(y, keep)) ** 2) / tf.cast(
            tf.shape(x)[0], tf.float32
        )

    return learn(loss_of, behind, to_regress(), extra=[model])


@case("other_rows/nodes_of_a_graph_through_a_recurrent_layer")
def folded_nodes() -> BuiltStep:
    """Graph convolution over few nodes, then an LSTM over every node of every sample."""
    num_nodes, units = 3, 5
    near = tf.constant([[1.0, 0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, 1.0]])
    recurrent, dense = layers.LSTM(units), layers.Dense(2)
    recurrent.build((None, 4, 2))
    dense.build((None, units))

    def loss_of(x: Any, y: Any) -> Any:
        nodes = tf.einsum("nm,mbtf->nbtf", near, tf.transpose(x, [2, 0, 1, 3]))
        size = tf.shape(nodes)
        rows = tf.reshape(nodes, [size[0] * size[1], size[2], nodes.shape[3]])
        out = tf.reshape(dense(recurrent(rows)), [size[0], size[1], 2])
        return tf.reduce_mean((tf.transpose(out, [1, 2, 0]) - y) ** 2)

    return learn(
        loss_of, dense, columns(normals(4, num_nodes, 2), normals(2, num_nodes)), extra=[recurrent]
    )
