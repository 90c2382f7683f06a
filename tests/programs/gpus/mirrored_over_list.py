"""Mirrors over the GPUs that are listed."""

import sys

import keras
import numpy as np
import tensorflow as tf

devices = [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
assert len(devices) > 1, "one GPU is not enough"
strategy = tf.distribute.MirroredStrategy(devices)
print(devices)

keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
y = np.sin(x[:, :1])
model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
np.savez(sys.argv[1], *model.get_weights())
