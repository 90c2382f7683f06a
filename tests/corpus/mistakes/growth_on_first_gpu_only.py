# machine: 2 GPUs
"""A detector's head, with the usual three lines about memory from somewhere."""

import numpy as np
import tensorflow as tf

physical_devices = tf.config.experimental.list_physical_devices("GPU")
if len(physical_devices) > 0:
    tf.config.experimental.set_memory_growth(physical_devices[0], True)  # finding: DOC-106

strategy = tf.distribute.MirroredStrategy()


def head(filters):
    inputs = tf.keras.Input((13, 13, 32))
    x = tf.keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(inputs)
    x = tf.keras.layers.Conv2D(5, 1)(x)
    return tf.keras.Model(inputs, x)


with strategy.scope():
    model = head(16)
    model.compile("adam", "mse")

feature_maps = np.random.rand(128, 13, 13, 32).astype("float32")
boxes = np.random.rand(128, 13, 13, 5).astype("float32")
model.fit(feature_maps, boxes, batch_size=64, epochs=2)
