# machine: 1 GPU
"""A block makes its convolution in call: new weights each time, which fit refuses."""

import numpy as np
import tensorflow as tf
from keras import Model, layers


class Block(layers.Layer):
    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters
        self.norm = layers.LayerNormalization()

    def call(self, x):
        x = layers.Conv1D(self.filters, 3, padding="same")(x)  # finding: RUN-009
        return tf.nn.relu(self.norm(x))


class Network(Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(8), Block(8)]
        self.pool = layers.GlobalAveragePooling1D()
        self.out = layers.Dense(1)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(self.pool(x))


model = Network()
model.compile("adam", "mse")
x = np.random.normal(size=(256, 30, 2)).astype("float32")
model.fit(x, x.mean((1, 2)), batch_size=64, epochs=2)
