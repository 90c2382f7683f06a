# machine: 1 GPU
"""Weights alone are enough here: another task begins, and the rest is only tested."""

import pathlib
import tempfile

import keras
import numpy as np

path = str(pathlib.Path(tempfile.mkdtemp()) / "body.weights.h5")


def body():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu")], name="body")


x = np.random.rand(256, 8)
first = body()
pretext = keras.Sequential([keras.Input((8,)), first, keras.layers.Dense(8)])
pretext.compile("adam", "mse")
pretext.fit(x, x, batch_size=64, epochs=1, verbose=0)
first.save_weights(path)

second = body()
second.load_weights(path)
second.trainable = False
task = keras.Sequential([keras.Input((8,)), second, keras.layers.Dense(1)])
task.compile("adam", "mse")
task.fit(x, x[:, 0], batch_size=64, epochs=1, verbose=0)
task.save(path.replace(".weights.h5", ".keras"))

again = keras.models.load_model(path.replace(".weights.h5", ".keras"))
again.fit(x, x[:, 0], batch_size=64, epochs=1, verbose=0)
print(again.evaluate(x, x[:, 0], verbose=0))
