# machine: 1 GPU
"""Small steps, several of them in one call."""

import keras
import numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
options = {"steps_per_execution": 32}
model.compile(optimizer="adam", loss="mse", **options)

x = np.random.rand(8192, 4).astype("float32")
model.fit(x, x.sum(1), batch_size=16, epochs=1, verbose=0)
