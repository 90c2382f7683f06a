# machine: 2 GPUs
"""The pipeline caches behind repeat, into a file for one epoch, and repeats again."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    net = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    net.compile("adam", "mse")


def pipeline(x, y):
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = dataset.shuffle(2048)
    dataset = dataset.batch(64, drop_remainder=True)
    dataset = dataset.cache().repeat()
    return dataset.prefetch(tf.data.AUTOTUNE)


x = np.random.rand(2048, 32).astype("float32")
net.fit(pipeline(x, x[:, :1]), epochs=100, steps_per_epoch=32)
