# machine: 2 GPUs
"""A model in two stages, each on a GPU of its own, its gradients too."""

import keras
import numpy as np
import tensorflow as tf

import evener


class Stage(keras.layers.Layer):
    def __init__(self, device, units, activation):
        super().__init__()
        self.device = device
        self.dense = keras.layers.Dense(units, activation=activation)

    def build(self, input_shape):
        with tf.device(self.device):
            self.dense.build(input_shape)

    def call(self, x):
        with tf.device(self.device):
            return self.dense(x)


model = keras.Sequential(
    [keras.Input((32,)), Stage("/gpu:0", 64, "relu"), Stage("/gpu:1", 1, None)]
)
variables = model.trainable_variables


@tf.function
def train_step(x, y):
    loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    gradients = evener.pinned_gradients(loss, variables)
    for variable, gradient in zip(variables, gradients):
        variable.assign(variable - 0.05 * gradient)
    return loss


x = np.random.default_rng(0).normal(size=(512, 32)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(64).prefetch(2)
for epoch in range(2):
    for features, targets in dataset:
        loss = train_step(features, targets)
    print("epoch", epoch, "loss", float(loss))
