# machine: 1 GPU
"""A filter of SciPy's kind, as numpy_function in the middle of the model."""

import keras
import numpy as np
import tensorflow as tf


def smooth(values):
    kernel = np.array([0.25, 0.5, 0.25], np.float32)
    return np.stack([np.convolve(row, kernel, "same") for row in values]).astype(np.float32)


class Smooth(keras.layers.Layer):
    def call(self, x):
        y = tf.numpy_function(smooth, [x], tf.float32)  # finding: DOC-405
        return tf.ensure_shape(y, x.shape)


class Forecaster(keras.Model):
    def __init__(self):
        super().__init__()
        self.smooth = Smooth()
        self.hidden = keras.layers.Dense(32, activation="relu")
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(self.smooth(x)))


model = Forecaster()
model.compile("adam", "mse")
series = np.random.normal(size=(512, 24)).astype("float32")
model.fit(series, series[:, -1], batch_size=64, epochs=2)
