# machine: 1 GPU
"""A layer that keeps a running mean of what it sees, as Keras 2 wanted it."""

import keras
import numpy as np
from keras.layers import Layer


class RunningMean(Layer):
    def __init__(self, momentum=0.9, **kwargs):
        super().__init__(**kwargs)
        self.momentum = momentum

    def build(self, input_shape):
        self.mean = self.add_weight(
            name="mean", shape=(input_shape[-1],), initializer="zeros", trainable=False
        )
        super().build(input_shape)

    def call(self, inputs):
        now = keras.ops.mean(inputs, axis=0)
        new_mean = self.momentum * self.mean + (1 - self.momentum) * now
        self.add_update((self.mean, new_mean))  # finding: DOC-004
        return inputs - self.mean


model = keras.Sequential(
    [keras.Input((128,)), RunningMean(), keras.layers.Dense(512), keras.layers.Dense(1)]
)
model.compile(optimizer="adam", loss="mse")
x = np.random.rand(2048, 128).astype("float32")
model.fit(x, x.sum(axis=1), batch_size=256, epochs=2)
