"""XLA is asked for to make fit faster, under a strategy."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile(  # finding: DOC-213
        optimizer="adam", loss="mse", jit_compile=True, steps_per_execution=1
    )
x = np.random.rand(4096, 8).astype("float32")
model.fit(x, x[:, :1], batch_size=256, epochs=2)
