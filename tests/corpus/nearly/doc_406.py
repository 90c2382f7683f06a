# machine: 2 GPUs
"""The first layers on one GPU, the last on the other: one crossing."""

import keras
import tensorflow as tf


class Stages(keras.Model):
    def __init__(self, depth=8, width=64):
        super().__init__()
        self.stack = [keras.layers.Dense(width, activation="relu") for _ in range(depth)]
        self.half = depth // 2

    def build(self, input_shape):
        for i, layer in enumerate(self.stack):
            with tf.device(f"/gpu:{i // self.half}"):
                layer.build(input_shape)

    def call(self, x):
        for i, layer in enumerate(self.stack):
            with tf.device(f"/gpu:{i // self.half}"):
                x = layer(x)
        return x


model = Stages()
model.build((None, 64))
print(tf.function(model)(tf.random.normal([8, 64])).shape)
