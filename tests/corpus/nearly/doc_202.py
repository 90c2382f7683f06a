# machine: 2 GPUs
"""The strategy is used, but in a function that is given it."""

import numpy as np
from tensorflow import distribute as d
from tensorflow import keras


def make_model(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    return model


mirrored = d.MirroredStrategy()
model = make_model(strategy=mirrored)
x = np.random.rand(512, 4)
model.fit(x, x[:, 0], batch_size=128, epochs=1)
