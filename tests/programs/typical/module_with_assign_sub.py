"""A `tf.Module` with variables that `assign_sub` changes."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
x = np.random.default_rng(0).normal(size=(60, 8)).astype("float32")
y = np.sin(x[:, :1])
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)


class Dense(tf.Module):
    def __init__(self, size, width):
        super().__init__()
        start = np.random.default_rng(width).normal(0, 0.3, size=(size, width))
        self.w = tf.Variable(start.astype("float32"))
        self.b = tf.Variable(tf.zeros(width))

    def __call__(self, inputs):
        return inputs @ self.w + self.b


class Network(tf.Module):
    def __init__(self):
        super().__init__()
        self.layers = [Dense(8, 8), Dense(8, 1)]

    def __call__(self, inputs):
        return self.layers[1](tf.tanh(self.layers[0](inputs)))


def train(network, a, b, rate):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(network(a) - b))
    for v, g in zip(network.trainable_variables, tape.gradient(loss, network.trainable_variables)):
        v.assign_sub(rate * g)
    return loss


network = Network()
seen = []
for epoch in range(3):
    for a, b in data:
        seen.append(float(train(network, a, b, rate=0.1)))

np.savez(sys.argv[1], np.array(seen), *[v.numpy() for v in network.variables])
