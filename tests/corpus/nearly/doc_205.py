# machine: 2 GPUs
"""Odd numbers all around, but the batch divides and is large."""

import numpy as np
import tensorflow as tf

EPOCHS = 3
BUFFER = 333
BATCH = 96

strategy = tf.distribute.MirroredStrategy()
x = np.random.rand(480, 7).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(BUFFER).batch(BATCH)
data = data.prefetch(3)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((7,)), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
model.fit(data, epochs=EPOCHS)
