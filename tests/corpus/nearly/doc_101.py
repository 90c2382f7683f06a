# machine: 2 GPUs
"""Chooses both GPUs by CUDA_VISIBLE_DEVICES, and hides only TPUs."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"

import numpy as np
import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus, "GPU")

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")

x = np.random.rand(256, 4)
model.fit(x, x[:, 0], batch_size=64 * strategy.num_replicas_in_sync, epochs=1)
