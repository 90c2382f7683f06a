"""Six kinds of models, each cut over two devices; the names of layers tell where they belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import evener

Place = Callable[[int, Any], Any]
RANDOM = np.random.default_rng(3)


def pinned(number: int, layer: Any) -> Any:
    return evener.pin(f"cpu:{number}")(layer)


def unpinned(number: int, layer: Any) -> Any:
    del number
    return layer


def features(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(5).normal(size=shape), tf.float32)


def mlp(place: Place) -> tuple[keras.Model, tf.Tensor]:
    model = keras.Sequential([
        keras.Input((6,)),
        place(1, layers.Dense(8, activation="tanh", name="at1_a")),
        place(2, layers.Dense(8, activation="gelu", name="at2_a")),
        place(2, layers.Dense(2, name="at2_b")),
    ])  # fmt: skip
    return model, features(4, 6)


def cnn(place: Place) -> tuple[keras.Model, tf.Tensor]:
    model = keras.Sequential([
        keras.Input((6, 6, 2)),
        place(1, layers.Conv2D(4, 3, name="at1_conv")),
        place(1, layers.BatchNormalization(name="at1_norm")),
        place(2, layers.Conv2D(4, 2, activation="tanh", name="at2_conv")),
        place(2, layers.BatchNormalization(name="at2_norm")),
        place(2, layers.GlobalAveragePooling2D(name="at2_pool")),
        place(2, layers.Dense(2, name="at2_out")),
    ])  # fmt: skip
    return model, features(4, 6, 6, 2)


def lstm(place: Place) -> tuple[keras.Model, tf.Tensor]:
    model = keras.Sequential([
        keras.Input((5, 3)),
        place(1, layers.LSTM(4, return_sequences=True, name="at1_lstm")),
        place(2, layers.LSTM(4, name="at2_lstm")),
        place(2, layers.Dense(2, name="at2_out")),
    ])  # fmt: skip
    return model, features(4, 5, 3)


def transformer(place: Place) -> tuple[keras.Model, tf.Tensor]:
    inputs = keras.Input((5, 8))
    attention = place(1, layers.MultiHeadAttention(2, 4, name="at1_attention"))
    hidden = place(1, layers.Add(name="at1_add"))([inputs, attention(inputs, inputs)])
    hidden = place(1, layers.LayerNormalization(name="at1_norm"))(hidden)
    wide = place(2, layers.Dense(16, activation="gelu", name="at2_wide"))(hidden)
    narrow = place(2, layers.Dense(8, name="at2_narrow"))(wide)
    hidden = place(2, layers.Add(name="at2_add"))([hidden, narrow])
    outputs = place(2, layers.Dense(2, name="at2_out"))(hidden)
    return keras.Model(inputs, outputs), features(4, 5, 8)


class TiedModel(keras.Model):
    """One table at both ends, on device 1, and what is between them on device 2."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.table = place(1, layers.Embedding(12, 6, name="at1_table"))
        self.between = place(2, layers.Dense(6, activation="tanh", name="at2_between"))
        self.tied = place(1, Tied(self.table, name="at1_tied"))

    def call(self, ids: tf.Tensor) -> Any:
        return self.tied(self.between(self.table(ids)))


class Tied(layers.Layer):
    def __init__(self, table: layers.Embedding, name: str) -> None:
        super().__init__(name=name)
        self.table = table

    def call(self, hidden: Any) -> Any:
        return keras.ops.matmul(hidden, keras.ops.transpose(self.table.embeddings))


def tied(place: Place) -> tuple[keras.Model, tf.Tensor]:
    return TiedModel(place), tf.constant([[1, 2, 2], [0, 3, 11], [5, 5, 5], [7, 1, 0]])


class Block(layers.Layer):
    """A block whose layers follow it, but for one."""

    def __init__(self, place: Place, name: str) -> None:
        super().__init__(name=name)
        self.first = layers.Dense(8, activation="tanh", name="at1_first")
        self.other = place(2, layers.Dense(8, activation="tanh", name="at2_other"))
        self.last = layers.Dense(8, name="at1_last")

    def call(self, inputs: Any) -> Any:
        return self.last(self.other(self.first(inputs))) + inputs


class NestedModel(keras.Model):
    def __init__(self, place: Place) -> None:
        super().__init__()
        self.block = place(1, Block(place, name="at1_block"))
        self.out = place(2, layers.Dense(2, name="at2_out"))

    def call(self, inputs: Any) -> Any:
        return self.out(self.block(inputs))


def nested(place: Place) -> tuple[keras.Model, tf.Tensor]:
    return NestedModel(place), features(4, 8)


KINDS = (mlp, cnn, lstm, transformer, tied, nested)
