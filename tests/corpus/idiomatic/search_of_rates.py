# machine: 1 GPU
"""Several models one after the other, each made, compiled and fitted in its turn."""

import keras
import numpy as np


def build(units, rate):
    model = keras.Sequential(
        [keras.Input((9,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse")
    return model


x = np.random.default_rng(0).normal(size=(640, 9)).astype("float32")
y = np.abs(x).sum(axis=1)
results = {}
for units in (16, 32):
    for rate in (1e-2, 1e-3):
        keras.utils.set_random_seed(0)
        history = build(units, rate).fit(
            x, y, batch_size=64, epochs=2, validation_split=0.2, verbose=0
        )
        results[units, rate] = min(history.history["val_loss"])
best = min(results, key=results.get)
print("best", best, results[best])
