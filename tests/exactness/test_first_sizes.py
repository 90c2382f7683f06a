"""The law for data whose tensors have first dimensions of their own, which fit does not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from .candidates import Place
from .harness import THREE, agree, compile_model, fit_again, fit_model

NUM_CLASSES = 5


class SemiSupervised(keras.Model):
    """Trains on labelled samples, and on others whose number has nothing to do with theirs."""

    def __init__(self, joins: bool) -> None:
        super().__init__()
        self.joins = joins
        self.encoder = keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(NUM_CLASSES)])

    def call(self, x: Any) -> Any:
        return self.encoder(x)

    def train_step(self, data: Any) -> Any:
        (x, y), others = data
        with tf.GradientTape() as tape:
            if self.joins:
                logits = self.encoder(tf.concat([x, others], 0), training=True)
                of_x, of_others = tf.split(logits, [tf.shape(x)[0], tf.shape(others)[0]])
            else:
                of_x, of_others = (self.encoder(part, training=True) for part in (x, others))
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, of_x)
            loss = tf.reduce_mean(each) + 0.3 * tf.reduce_mean(tf.nn.softmax(of_others) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("joins", [False, True])
def test_two_data_sets_with_other_batch_sizes(joins: bool) -> None:
    """Zipped, as for semi-supervised learning: 4 labelled, 12 unlabelled, the last ones fewer."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(19, 6)).astype("float32")
    others = rng.normal(size=(59, 6)).astype("float32")
    labelled = tf.data.Dataset.from_tensor_slices((x, rng.integers(NUM_CLASSES, size=19)))
    unlabelled = tf.data.Dataset.from_tensor_slices(others)

    def experiment(place: Place) -> dict[str, object]:
        data = tf.data.Dataset.zip((labelled.batch(4), unlabelled.batch(12)))
        return fit_model(place, lambda: SemiSupervised(joins), (data,), dict)

    agree(experiment, THREE)


def graph_batches() -> Iterator[Any]:
    """Yield batches of four graphs, with as many atoms and bonds as they like."""
    rng = np.random.default_rng(1)
    for _ in range(4):
        sizes = rng.integers(1, 5, size=4)
        num_atoms, num_bonds = sizes.sum(), int(rng.integers(9, 20))
        inputs = (
            rng.normal(size=(num_atoms, 4)).astype("float32"),
            rng.normal(size=(num_bonds, 3)).astype("float32"),
            rng.integers(num_atoms, size=(num_bonds, 2)),
            np.repeat(np.arange(4), sizes),
        )
        yield inputs, rng.normal(size=(4, 1)).astype("float32")


class Messages(layers.Layer):
    """Two rounds of messages along bonds, then a sum over the atoms of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = layers.Dense(4, "tanh"), layers.Dense(4, "tanh")

    def build(self, shapes: Any) -> None:
        self.message.build((None, 7))
        self.update.build((None, 8))

    def call(self, inputs: Any) -> Any:
        atoms, bonds, pairs, graphs = inputs
        for _ in range(2):
            sent = self.message(tf.concat([tf.gather(atoms, pairs[:, 1]), bonds], 1))
            heard = tf.math.unsorted_segment_sum(sent, pairs[:, 0], tf.shape(atoms)[0])
            atoms = self.update(tf.concat([atoms, heard], 1))
        return tf.math.unsorted_segment_mean(atoms, graphs, 4)


def graph_network() -> keras.Model:
    inputs = [
        keras.Input((4,)),
        keras.Input((3,)),
        keras.Input((2,), dtype="int64"),
        keras.Input((), dtype="int64"),
    ]
    return keras.Model(inputs, layers.Dense(1)(Messages()(inputs)))


def test_graphs_with_as_many_atoms_and_bonds_as_they_like() -> None:
    """Message passing under Keras's own fit: five tensors with three first sizes."""
    specs = (
        (
            tf.TensorSpec([None, 4]),
            tf.TensorSpec([None, 3]),
            tf.TensorSpec([None, 2], tf.int64),
            tf.TensorSpec([None], tf.int64),
        ),
        tf.TensorSpec([None, 1]),
    )

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, graph_network, lambda: {"loss": "mse"})
        data = tf.data.Dataset.from_generator(graph_batches, output_signature=specs)
        return fit_again(place, model, (data.apply(tf.data.experimental.assert_cardinality(4)),))

    agree(experiment, THREE)


class OnSparse(keras.Model):
    """Built by its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_a_model_that_is_built_by_sparse_samples() -> None:
    """A Dense layer asks for the last size of its input, sparse or not."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(21, 6)) * (rng.random((21, 6)) < 0.4)
    x = tf.sparse.from_dense(rows.astype("float32"))
    y = rng.normal(size=(21, 1)).astype("float32")

    def experiment(place: Place) -> dict[str, object]:
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        return fit_model(place, OnSparse, (data,), lambda: {"loss": "mse"})

    agree(experiment, THREE)
