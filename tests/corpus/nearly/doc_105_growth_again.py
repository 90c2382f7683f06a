# machine: 2 GPUs
"""Sets memory growth once more, to what it is: TensorFlow compares, and raises nothing."""

import keras
import numpy as np
import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)

x = np.random.rand(4096, 16).astype("float32")
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
model.fit(x, x[:, :1], batch_size=256)

# From the guide, to see what there is.
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    try:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        print(len(gpus), "physical GPUs,", len(tf.config.list_logical_devices("GPU")), "logical")
    except RuntimeError as error:
        print(error)
