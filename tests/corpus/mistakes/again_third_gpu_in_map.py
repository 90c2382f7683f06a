# machine: 2 GPUs
"""Encoder and decoder by a map of devices that came with a larger machine."""

import keras
import numpy as np
import tensorflow as tf

DEVICE_MAP = {
    "encoder": "/GPU:0",
    "decoder": "/GPU:2",  # may: DOC-107
}


class Stage(keras.layers.Layer):
    def __init__(self, units, where):
        super().__init__()
        self.dense = keras.layers.Dense(units, activation="relu")
        self.where = where

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        with tf.device(self.where):  # may: DOC-107
            return self.dense(x)


model = keras.Sequential(
    [
        keras.Input((64,)),
        Stage(256, where=DEVICE_MAP["encoder"]),
        Stage(64, where=DEVICE_MAP["decoder"]),  # may: DOC-107
    ]
)
with tf.device(DEVICE_MAP["decoder"]):  # finding: DOC-107
    codebook = tf.Variable(tf.random.normal((128, 64)))

model.compile(optimizer="adam", loss="mse")
x = np.abs(np.random.normal(size=(512, 64))).astype("float32")
model.fit(x, x, batch_size=128, epochs=1)
print(tf.matmul(model(x[:4]), codebook, transpose_b=True).shape)
