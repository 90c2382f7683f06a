# machine: 4 GPUs
"""A weighted error as a Loss class, in a module of losses."""

import numpy as np
import tensorflow as tf
from custom_losses import WeightedError

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((7,)), tf.keras.layers.Dense(14, "relu"), tf.keras.layers.Dense(1)]
    )
    model.compile(optimizer="adam", loss=WeightedError(under=2.0))  # may: ENG-064

x = np.random.normal(size=(1024, 7)).astype("float32")
y = np.abs(x).sum(axis=1, keepdims=True)
model.fit(x, y, batch_size=64 * strategy.num_replicas_in_sync, epochs=2)
