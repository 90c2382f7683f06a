# machine: 1 GPU
"""ModelCheckpoint fills in the epoch; the name that is loaded has none."""

import pathlib
import tempfile

import keras
import numpy as np

folder = pathlib.Path(tempfile.mkdtemp())

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
model.compile("sgd", "mse")
x = np.random.rand(256, 8).astype("float32")

saver = keras.callbacks.ModelCheckpoint(  # may: DOC-501
    str(folder / "model-{epoch:02d}.weights.h5"), save_weights_only=True
)
model.fit(x, x, batch_size=64, epochs=2, callbacks=[saver])

best = folder / "model.weights.h5"
print("weights in", best)  # may: DOC-501
model.load_weights(str(best))  # finding: DOC-501
