# machine: 2 GPUs
"""Compares with one device: the small odd batch is that of the model without a strategy."""

import keras
import numpy as np
import tensorflow as tf


def compiled_model():
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    return model


x = np.random.rand(4096, 16).astype("float32")
y = x[:, :1]

alone = compiled_model()
alone.fit(x[:99], y[:99], batch_size=33)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    together = compiled_model()
together.fit(x, y, batch_size=256)
print(alone.evaluate(x, y), together.evaluate(x, y))
