# machine: 2 GPUs
"""Pins that do have an effect: around tensors, variables, and the calls of layers."""

import keras
import numpy as np
import tensorflow as tf


class Halves(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        with tf.device("/gpu:1"):
            self.inner = keras.layers.Dense(32, activation="relu")
            self.inner.build((None, 16))

    def call(self, x):
        with tf.device("/gpu:1"):
            return self.inner(x)


with tf.device("/cpu:0"):
    table = tf.Variable(np.random.rand(100, 16).astype("float32"))
with tf.device("/gpu:1"):
    offset = tf.random.normal([16])

layer = Halves()


@tf.function
def predict(ids):
    with tf.device("/cpu:0"):
        rows = tf.gather(table, ids)
    with tf.device("/gpu:1"):
        rows = rows + offset
    return layer(rows)


print(predict(tf.range(8)).shape)
