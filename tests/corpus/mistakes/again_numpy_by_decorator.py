# machine: 1 GPU
"""A decorator that makes NumPy functions into layers: each step goes over the host."""

import functools

import keras
import numpy as np
import tensorflow as tf


def from_numpy(dtype):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(x):
            y = tf.numpy_function(fn, [x], dtype)  # finding: DOC-405
            y.set_shape(x.shape)
            return y

        return inner

    return wrap


@from_numpy(tf.float32)
def rank(x):
    return np.argsort(np.argsort(x, axis=-1), axis=-1).astype("float32")


class Ranks(keras.layers.Layer):
    def call(self, x):
        return tf.concat([x, rank(x)], axis=-1)  # may: DOC-405

    def compute_output_shape(self, shape):
        return (*shape[:-1], 2 * shape[-1])


model = keras.Sequential([Ranks(), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
x = np.random.normal(size=(1024, 16)).astype("float32")
model.fit(x, x.max(1), batch_size=128)
