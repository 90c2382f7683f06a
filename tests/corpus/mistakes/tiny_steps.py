# machine: 1 GPU
"""A tiny model with small batches: each step costs more to start than to compute."""

import keras
import numpy as np

model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
)
model.compile(optimizer="adam", loss="mse")  # finding: DOC-404

x = np.random.rand(20000, 4).astype("float32")
model.fit(x, x.sum(1), batch_size=16, epochs=2, verbose=0)  # may: DOC-404
