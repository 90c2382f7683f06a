# machine: 1 GPU
"""A gate held by tf.Variable: a Keras 3 layer does not see it, it never moves."""

import keras
import numpy as np
import tensorflow as tf


class Gate(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.scale = tf.Variable(tf.ones([units]), trainable=True)  # finding: DOC-308

    def call(self, x):
        return x * self.scale


class Gated(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(16, activation="relu")
        self.gate = Gate(16)
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.gate(self.dense(x)))


model = Gated()
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
x = np.random.rand(512, 4).astype("float32")
model.fit(x, x.sum(1), batch_size=64, epochs=3)
print("gate", model.gate.scale.numpy())
