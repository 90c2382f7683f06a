"""Two optimizers over two parts of one model, with gradients accumulated by hand."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(4)
x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
y = np.sin(x[:, :1])
body = keras.layers.Dense(16, activation="tanh")
norm = keras.layers.BatchNormalization()
head = keras.layers.Dense(1)
model = keras.Sequential([keras.Input((8,)), body, norm, head])
slow, fast = keras.optimizers.SGD(0.01), keras.optimizers.Adam(0.01)
sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in model.trainable_variables]


@tf.function
def accumulate(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.abs(model(a, training=True) - b))
    for total, gradient in zip(sums, tape.gradient(loss, model.trainable_variables)):
        total.assign_add(gradient / 2.0)
    return loss


@tf.function
def apply():
    pairs = list(zip(sums, model.trainable_variables))
    slow.apply_gradients(pairs[:4])
    fast.apply_gradients(pairs[4:])
    for total in sums:
        total.assign(tf.zeros_like(total))


numbers = []
for k, start in enumerate(range(0, 64, 16)):
    numbers.append(float(accumulate(x[start : start + 16], y[start : start + 16])))
    if k % 2:
        apply()
np.savez(sys.argv[1], np.array(numbers), *model.get_weights())
