"""The guide's lines for one GPU stayed in the program when the strategy came."""

import numpy as np
import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
if gpus:
    try:
        tf.config.experimental.set_visible_devices(gpus[0], "GPU")  # finding: DOC-101
    except RuntimeError as error:
        print(error)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", steps_per_execution=8)
x = np.random.rand(4096, 8).astype("float32")
model.fit(x, x[:, :1], batch_size=256, epochs=2)
