"""Tensors with a first dimension of their own: other data sets, noise of a known size, graphs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from .case import BuiltStep, case, integers, learn, mlp, normal, sgd, state

NUM_DRAWN = 16


def cross_entropy(y: Any, logits: Any) -> Any:
    """Return the mean cross entropy of labels."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def seed_of(first: int, drawn: tf.Variable) -> Any:
    """Return a seed that is another one after every draw."""
    return tf.stack([first, drawn.read_value()])


def labelled_and_not(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    """Return samples with labels, and more without."""
    return normal(rng, n, 6), integers(rng, 5, n), normal(rng, 2 * n + 1, 6)


def graphs(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    """Return atoms, bonds, pairs of atoms, the molecule of every atom, and their labels."""
    num_atoms, num_bonds = 3 * n + 1, 5 * n + 2
    return (
        normal(rng, num_atoms, 4),
        normal(rng, num_bonds, 3),
        integers(rng, num_atoms, num_bonds, 2),
        np.sort(integers(rng, n, num_atoms)),
        normal(rng, n, 1),
    )


@case("other_rows/labelled_and_unlabelled_joined")
def joined() -> BuiltStep:
    encoder = mlp(6, 10, 5)

    def loss_of(x: Any, y: Any, u: Any) -> Any:
        logits = encoder(tf.concat([x, u], 0), training=True)
        of_x, of_u = logits[: tf.shape(x)[0]], logits[tf.shape(x)[0] :]
        return cross_entropy(y, of_x) + 0.3 * tf.reduce_mean(tf.nn.softmax(of_u) ** 2)

    return learn(loss_of, encoder, labelled_and_not)


@case("other_rows/joined_and_split")
def joined_and_split() -> BuiltStep:
    encoder = keras.Sequential([keras.Input((6,)), layers.Dense(10, "tanh"), layers.Dense(5)])

    def loss_of(x: Any, y: Any, u: Any) -> Any:
        logits = encoder(tf.concat([x, u], 0), training=True)
        of_x, of_u = tf.split(logits, [tf.shape(x)[0], tf.shape(u)[0]])
        return cross_entropy(y, of_x) + 0.1 * tf.reduce_mean(
            tf.nn.softmax(of_u @ tf.transpose(of_x))
        )

    return learn(loss_of, encoder, labelled_and_not)


@case("other_rows/encoded_apart")
def apart() -> BuiltStep:
    encoder = keras.Sequential(
        [keras.Input((6,)), layers.Dense(10, "tanh"), layers.BatchNormalization(), layers.Dense(5)]
    )

    def loss_of(x: Any, y: Any, u: Any) -> Any:
        of_x, of_u = encoder(x, training=True), encoder(u, training=True)
        alike = tf.nn.softmax(of_u @ tf.transpose(of_x), axis=1)
        return cross_entropy(y, of_x) + tf.reduce_mean(alike @ of_x * of_u) * 0.1

    return learn(loss_of, encoder, labelled_and_not)


@case("other_rows/loss_divided_by_a_static_size")
def static_size() -> BuiltStep:
    encoder = mlp(6, 10, 5)
    optimizer = sgd(encoder.trainable_variables)

    def step(x: Any, y: Any, u: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = encoder(tf.concat([x, u], 0), training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits[: x.shape[0]])
            loss = tf.reduce_sum(each) / x.shape[0]
            loss += tf.reduce_mean(tf.nn.softmax(logits[x.shape[0] :]) ** 2)
        weights = encoder.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss / float(x.shape[0]), tf.reduce_mean(logits, 1)

    return BuiltStep(step=step, batch=labelled_and_not, variables=state(encoder, optimizer))


@case("other_rows/recurrent_on_joined_batches")
def recurrent() -> BuiltStep:
    model = keras.Sequential([keras.Input((4, 3)), layers.GRU(5), layers.Dense(5)])

    def loss_of(x: Any, y: Any, u: Any) -> Any:
        logits = model(tf.concat([x, u], 0), training=True)
        return cross_entropy(y, logits[: tf.shape(y)[0]]) + 0.1 * tf.reduce_mean(logits**2)

    def batch(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return normal(rng, 2 * n, 4, 3), integers(rng, 5, 2 * n), normal(rng, n, 4, 3)

    return learn(loss_of, model, batch)


@case("other_rows/gan_of_noise_of_a_known_size")
def gan() -> BuiltStep:
    generator = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(2 * 2 * 3, "tanh"),
            layers.Reshape((2, 2, 3)),
            layers.Conv2DTranspose(4, 4, strides=2, padding="same"),
            layers.BatchNormalization(),
            layers.Conv2D(1, 3, padding="same", activation="tanh"),
        ]
    )
    discriminator = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            layers.Conv2D(4, 3, strides=2, padding="same", activation="tanh"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(1),
        ]
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

    def batch(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return (normal(rng, n, 4, 4, 1),)

    return BuiltStep(
        step=step,
        batch=batch,
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

    def batch(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), normal(rng, n, 4)

    return learn(loss_of, behind, batch, extra=[before])


@case("other_rows/rows_that_the_data_chooses")
def chosen() -> BuiltStep:
    model, behind = mlp(6, 8, 6), mlp(6, 8, 4)

    def loss_of(x: Any, y: Any) -> Any:
        keep = y[:, 0] > -0.5
        kept = behind(tf.boolean_mask(model(x), keep))
        return tf.reduce_sum((kept - tf.boolean_mask(y, keep)) ** 2) / tf.cast(
            tf.shape(x)[0], tf.float32
        )

    def batch(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), normal(rng, n, 4)

    return learn(loss_of, behind, batch, extra=[model])


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

    def batch(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 4, num_nodes, 2), normal(rng, n, 2, num_nodes)

    return learn(loss_of, dense, batch, extra=[recurrent])
