"""Leaves if there is no GPU, by a name that was imported."""

import sys

import keras
import numpy as np
from tensorflow.config import list_physical_devices

gpus = list_physical_devices("GPU")
if not gpus:
    sys.exit("no GPU")
print(gpus[-1].name)

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
)
model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
y = np.sin(x[:, :1])
model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
np.savez(sys.argv[1], *model.get_weights())
