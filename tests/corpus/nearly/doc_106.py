# machine: 2 GPUs
"""One GPU is made visible, and growth is set on that one."""

import numpy as np
import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
if gpus:
    # The other card drives the screen.
    tf.config.set_visible_devices(gpus[1], "GPU")  # may: DOC-101
    tf.config.experimental.set_memory_growth(gpus[1], True)

model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.rand(256, 4)
model.fit(x, x[:, 0], batch_size=64, epochs=1)
