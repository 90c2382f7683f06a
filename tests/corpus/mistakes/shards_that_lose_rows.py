"""Gradients by hand on all GPUs: each takes its rows of the batch, rounded down."""

import numpy as np
import tensorflow as tf
from tensorflow import keras


def averaged(net, x, y, devices):
    per_device = len(x) // len(devices)  # finding: DOC-217
    sums = [tf.zeros_like(v) for v in net.trainable_variables]
    for index, device in enumerate(devices):
        with tf.device(device.name):
            begin, end = index * per_device, (index + 1) * per_device
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(net(x[index * per_device : end]) - y[begin:end]))
            parts = tape.gradient(loss, net.trainable_variables)
        sums = [a + b for a, b in zip(sums, parts)]
    return [each / len(x) for each in sums]


gpus = tf.config.list_logical_devices("GPU")
data = np.random.rand(997, 6).astype("float32")
net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.1)
for _ in range(50):
    chosen = np.random.permutation(len(data))[:61]
    grads = averaged(net, data[chosen], data[chosen, :1], gpus)
    opt.apply_gradients(zip(grads, net.trainable_variables))
