# machine: 1 GPU
"""FiLM: scale and shift as plain variables of TensorFlow, made by a method."""

import numpy as np
import tensorflow as tf


class Film(tf.keras.layers.Layer):
    def build(self, shape):
        self.scale = self._parameter("scale", tf.ones((shape[-1],)))
        self.shift = self._parameter("shift", tf.zeros((shape[-1],)))

    def _parameter(self, name, value):
        return tf.Variable(value, name=name, trainable=True)  # finding: DOC-308

    def call(self, x):
        return x * self.scale + self.shift


model = tf.keras.Sequential(
    [tf.keras.Input((12,)), tf.keras.layers.Dense(32), Film(), tf.keras.layers.Dense(1)]
)
model.compile(optimizer="adam", loss="mse")
x = np.random.normal(size=(512, 12)).astype("float32")
model.fit(x, x.sum(1), batch_size=128, epochs=2)
print("trained:", [variable.name for variable in model.trainable_variables])
