# machine: 2 GPUs
"""train_on_batch of a model of one device, beside a model that a strategy trains by fit."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
x = np.random.rand(1024, 8).astype("float32")

small = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
small.compile(optimizer="sgd", loss="mse")
for start in range(0, 1024, 128):
    small.train_on_batch(x[start : start + 128], x[start : start + 128, :1])

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", steps_per_execution=8)
model.fit(x, small.predict(x), batch_size=128)
