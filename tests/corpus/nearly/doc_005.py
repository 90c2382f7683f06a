# machine: 2 GPUs
"""Eager execution is switched off for TensorFlow 1 only."""

import numpy as np
import tensorflow as tf

if tf.__version__.startswith("1."):
    tf.compat.v1.disable_eager_execution()

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    net = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    net.compile("adam", "mse")
net.fit(np.random.rand(512, 4), np.random.rand(512, 1), batch_size=64)
