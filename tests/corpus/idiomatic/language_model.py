# machine: 2 GPUs
"""A small transformer on tokens of one length, under MirroredStrategy and fit."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

VOCABULARY, LENGTH, WIDTH, HEADS = 64, 16, 32, 2


class Block(layers.Layer):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.wide = layers.Dense(4 * width, activation="gelu")
        self.narrow = layers.Dense(width)

    def call(self, x):
        x = x + self.attention(self.norms[0](x), self.norms[0](x), use_causal_mask=True)
        return x + self.narrow(self.wide(self.norms[1](x)))


class Positions(layers.Layer):
    def build(self, input_shape):
        self.table = self.add_weight(shape=input_shape[1:], name="table")

    def call(self, x):
        return x + self.table


def make_model():
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = Positions()(layers.Embedding(VOCABULARY, WIDTH)(tokens))
    for _ in range(2):
        x = Block(WIDTH, HEADS)(x)
    return keras.Model(tokens, layers.Dense(VOCABULARY)(x))


def make_dataset(batch_size):
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, size=(512, LENGTH + 1))
    dataset = tf.data.Dataset.from_tensor_slices(tokens.astype("int32")).shuffle(512)
    dataset = dataset.map(lambda row: (row[:-1], row[1:]), num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = make_model()
    model.compile(
        optimizer=keras.optimizers.AdamW(3e-4),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
model.fit(make_dataset(32 * strategy.num_replicas_in_sync), epochs=2)
