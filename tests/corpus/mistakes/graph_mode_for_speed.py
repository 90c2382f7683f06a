"""Eager execution is switched off, as a forum said that this is faster."""

import numpy as np
import tensorflow as tf

from tensorflow.keras import layers, models

tf.compat.v1.disable_eager_execution()  # finding: DOC-005


def network():
    net = models.Sequential()
    net.add(layers.Input((28, 28, 1)))
    net.add(layers.Conv2D(8, 3, activation="relu"))
    net.add(layers.GlobalAveragePooling2D())
    net.add(layers.Dense(10, activation="softmax"))
    return net


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    net = network()
    net.compile("adam", "sparse_categorical_crossentropy")
net.fit(np.random.rand(512, 28, 28, 1), np.random.randint(0, 10, 512), batch_size=64)
