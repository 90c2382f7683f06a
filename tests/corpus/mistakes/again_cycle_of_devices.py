"""itertools.cycle deals the blocks out to the two GPUs."""

import itertools

import keras
import numpy as np
import tensorflow as tf


class Residual(keras.Model):
    def __init__(self, depth=6, width=128, devices=("/gpu:0", "/gpu:1")):
        super().__init__()
        self.blocks = [keras.layers.Dense(width, activation="relu") for _ in range(depth)]
        self.devices = devices
        self.head = keras.layers.Dense(1)

    def call(self, x):
        for block, device in zip(self.blocks, itertools.cycle(self.devices)):
            with tf.device(device):  # finding: DOC-406  # may: DOC-301
                x = x + block(x)
        return self.head(x)


class Clock(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(epoch, logs["loss"])


model = Residual()
model.compile(optimizer="adam", loss="mse")
x = np.random.normal(size=(1024, 128)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(256).prefetch(2)
model.fit(data, epochs=2, callbacks=[Clock()], verbose=0)
