# machine: 4 GPUs
"""Each of several processes takes the GPU that its rank says."""

import os

import numpy as np
import tensorflow as tf

rank = int(os.environ.get("LOCAL_RANK", "0"))
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[rank], "GPU")

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", steps_per_execution=8)
x = np.random.rand(4096, 8).astype("float32")
model.fit(x, x[:, :1], batch_size=256, epochs=2)
