"""A builder of one's own takes the device, and enters it."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow import keras


class Block(keras.layers.Layer):
    def __init__(self, units, device):
        super().__init__()
        self.device_name = device
        self.dense = keras.layers.Dense(units, activation="relu")

    def call(self, x):
        with tf.device(self.device_name):
            return self.dense(x)


def build(device, num_gpus):
    print("of", num_gpus)
    return keras.Sequential([keras.Input((20,)), Block(32, device=device), keras.layers.Dense(1)])


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="/gpu:0")
args = parser.parse_args()
x = np.random.rand(1024, 20).astype("float32")
model = build(device=args.device, num_gpus=1)
model.compile("adam", "mse")
model.fit(x, x[:, :1], batch_size=64)
