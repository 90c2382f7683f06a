# machine: 2 GPUs
"""XLA for a model without a strategy; under the strategy Keras chooses by itself."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

x = np.random.rand(4096, 8).astype("float32")
teacher = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64), keras.layers.Dense(1)])
teacher.compile(optimizer="adam", loss="mse", jit_compile=True, steps_per_execution=8)
teacher.fit(x, x[:, :1], batch_size=256)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", jit_compile="auto", steps_per_execution=8)
model.fit(x, teacher.predict(x), batch_size=256)


@tf.function(jit_compile=True)
def scaled(values):
    return values * 2.0


print(scaled(tf.ones(3)))
