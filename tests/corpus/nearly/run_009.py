# machine: 1 GPU
"""Layers made lazily and once; functions of layers that are called to build, not to run."""

import keras
import numpy as np
from keras import layers


def block(x, units):
    # Called while the functional model is made.
    x = layers.Dense(units, activation="relu")(x)
    return layers.LayerNormalization()(x)


class Tail(layers.Layer):
    def build(self, input_shape):
        self.inner = layers.Dense(input_shape[-1])
        self.inner.build(input_shape)

    def call(self, x):
        return x + self.inner(x)


def make_model():
    inputs = keras.Input((6,))
    x = inputs
    for units in (16, 16):
        x = block(x, units)
    return keras.Model(inputs, layers.Dense(1)(Tail()(x)))


model = make_model()
model.compile("adam", "mse")
x = np.random.rand(256, 6)
model.fit(x, x[:, 0], batch_size=64, epochs=1)
