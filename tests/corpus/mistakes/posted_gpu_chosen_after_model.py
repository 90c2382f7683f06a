# machine: 2 GPUs
"""Chooses a GPU when the model is there: too late, so that the second GPU idles all the same."""

import numpy as np
import tensorflow as tf

x = np.random.rand(8192, 32).astype("float32")
y = (x.sum(axis=1) > 16).astype("float32")

model = tf.keras.Sequential(
    [
        tf.keras.Input((32,)),
        tf.keras.layers.Dense(512, activation="relu"),
        tf.keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(optimizer="adam", loss="binary_crossentropy")

gpus = tf.config.list_physical_devices("GPU")
if gpus:
    try:
        tf.config.set_visible_devices(gpus[0], "GPU")  # finding: DOC-105
    except RuntimeError as error:
        print(error)

model.fit(x, y, batch_size=512, epochs=3)  # finding: DOC-201
