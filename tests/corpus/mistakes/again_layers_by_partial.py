# machine: 1 GPU
"""An attention block that asks its factory for new layers whenever it is called."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf


class Block(keras.layers.Layer):
    def __init__(self, dim, heads=2, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(heads, dim // heads)
        self.project = partial(keras.layers.Dense, dim, activation="gelu")

    def mix(self, x):
        return self.project()(x)  # finding: RUN-009

    def call(self, x):
        x = x + self.attention(x, x)
        return x + self.mix(x)  # may: RUN-009


class Encoder(keras.Model):
    def __init__(self, dim=16, depth=1):
        super().__init__()
        self.blocks = [Block(dim) for _ in range(depth)]
        self.head = keras.layers.Dense(1)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(tf.reduce_mean(x, axis=1))


model = Encoder()
model.compile(optimizer="adam", loss="mse")
x = np.random.normal(size=(256, 6, 16)).astype("float32")
model.fit(x, x[:, 0, 0], batch_size=64)
