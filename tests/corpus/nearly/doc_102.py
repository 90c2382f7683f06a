# machine: 0 GPUs
# package: tensorflow-cpu 2.21.0
"""The CPU wheel on a machine that has no GPU."""

import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.rand(256, 4)
model.fit(x, x[:, 0], batch_size=64, epochs=1)
