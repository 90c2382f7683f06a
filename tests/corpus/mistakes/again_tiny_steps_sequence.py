# machine: 1 GPU
"""XOR with noise: ten thousand steps of four samples each."""

import numpy as np
import tensorflow as tf

CONFIG = dict(model=dict(units=8), fit=dict(batch_size=4, epochs=2, verbose=0))


def xor(num):
    x = np.random.randint(0, 2, size=(num, 2)).astype("float32")
    return x + np.random.normal(scale=0.05, size=x.shape), np.logical_xor(*x.T.astype(bool)).astype(
        "float32"
    )


def build(units):
    model = tf.keras.Sequential()
    model.add(tf.keras.Input((2,)))
    model.add(tf.keras.layers.Dense(units, activation="tanh"))
    model.add(tf.keras.layers.Dense(1, activation="sigmoid"))
    model.compile(  # may: DOC-404
        optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"]
    )
    return model


model = build(**CONFIG["model"])
model.fit(*xor(20000), **CONFIG["fit"])  # finding: DOC-404
print(model.evaluate(*xor(1000), verbose=0))
