"""Keras's own `fit`."""

import sys

import keras
import numpy as np

keras.utils.set_random_seed(5)
x = np.random.default_rng(0).normal(size=(60, 8)).astype("float32")
y = np.sin(x[:, :1])
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
seen = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0).history["loss"]

np.savez(sys.argv[1], np.array(seen), *model.get_weights())
