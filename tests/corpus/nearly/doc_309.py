# machine: 1 GPU
"""Integers, doubles and halves, each cast before it meets another."""

import numpy as np
import tensorflow as tf

counts = np.random.randint(0, 9, size=(256, 4))
scale = tf.constant(np.linspace(0.0, 1.0, 4))
weights = tf.Variable(tf.zeros([4, 1]))


@tf.function
def step(x, y):
    x = tf.cast(x, tf.float32) * tf.cast(scale, tf.float32)
    with tf.GradientTape() as tape:
        # A Python number takes the dtype of the tensor.
        loss = tf.reduce_mean(tf.square(x @ weights * 2 - tf.cast(y, x.dtype)))
    gradient = tape.gradient(loss, weights)
    weights.assign_sub(0.001 * gradient)
    rows = tf.shape(x)[0] + 1
    return loss / tf.cast(rows, tf.float32)


for start in range(0, 256, 64):
    x = counts[start : start + 64]
    loss = step(x, x.sum(axis=1, keepdims=True))
print(float(loss))
