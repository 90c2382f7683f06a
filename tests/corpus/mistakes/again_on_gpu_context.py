"""A context manager of one's own around tf.device; fit does not care."""

import os
from contextlib import contextmanager

import keras
import numpy as np
import tensorflow as tf


@contextmanager
def on_gpu(index):
    with tf.device(f"/GPU:{index}"):  # may: DOC-302
        yield


def functional(dim=16):
    inputs = keras.Input((dim,))
    with on_gpu(0):  # may: DOC-302
        h = keras.layers.Dense(256, activation="relu", name="low")(inputs)
    with on_gpu(1):  # finding: DOC-302
        h = keras.layers.Dense(256, activation="relu", name="high")(h)
        outputs = keras.layers.Dense(1)(h)
    return keras.Model(inputs, outputs)


class Report(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        for weight in self.model.weights:
            print(os.getpid(), weight.path, weight.value.device)


model = functional()
model.compile(optimizer="adam", loss="mse")
x = np.random.normal(size=(1024, 16)).astype("float32")
model.fit(x, x[:, :1], batch_size=256, callbacks=[Report()])
