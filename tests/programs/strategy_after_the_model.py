"""Keras `fit` of a model that is made and compiled first; the strategy was added afterwards.

MirroredStrategy on two devices stops in `fit`: RuntimeError: Mixing different
tf.distribute.Strategy objects. Without the scope around `fit`, one device would train alone.
"""

import sys

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)


def residual(x):
    h = tf.keras.layers.Dense(16, activation="gelu")(x)
    return tf.keras.layers.LayerNormalization()(tf.keras.layers.add([x, h]))


inputs = tf.keras.Input((16,))
outputs = tf.keras.layers.Dense(1)(residual(residual(inputs)))
model = tf.keras.Model(inputs, outputs)
model.compile(optimizer="adamw", loss="mae", metrics=["mse"])

x = np.random.default_rng(0).normal(size=(90, 16)).astype("float32")
y = np.sin(x[:, :1])

# use all GPUs
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model.fit(x, y, batch_size=25, epochs=2, validation_split=0.1, verbose=0)

np.savez(sys.argv[1], *model.get_weights())
print("loss", round(float(model.evaluate(x, y, verbose=0, return_dict=True)["loss"]), 6))
