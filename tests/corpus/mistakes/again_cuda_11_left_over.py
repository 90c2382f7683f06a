# machine: 1 GPU
# package: tensorflow 2.21.0
# package: nvidia-cudnn-cu11 8.9.6
# package: nvidia-cublas-cu11 11.11.3
"""An environment that was updated for years."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf  # finding: DOC-103

Dense = partial(keras.layers.Dense, kernel_initializer="he_normal", activation="relu")


def encoder(sizes):
    return keras.Sequential([keras.Input((32,)), *[Dense(size) for size in sizes]])


def data(num=1024):
    x = np.random.default_rng(1).normal(size=(num, 32)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x)).batch(128).prefetch(tf.data.AUTOTUNE)


model = keras.Sequential([encoder([64, 16]), Dense(64), keras.layers.Dense(32)])
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
model.fit(data(), epochs=3)
