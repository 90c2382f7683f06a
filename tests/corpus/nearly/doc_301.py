# machine: 2 GPUs
"""Forward and gradient of each half under the device of that half."""

import numpy as np
import tensorflow as tf

with tf.device("/gpu:0"):
    w1 = tf.Variable(tf.random.normal([16, 64], stddev=0.1))
with tf.device("/gpu:1"):
    w2 = tf.Variable(tf.random.normal([64, 1], stddev=0.1))


@tf.function
def step(x, y):
    with tf.device("/gpu:0"):
        with tf.GradientTape() as first:
            hidden = tf.nn.relu(x @ w1)
    with tf.device("/gpu:1"):
        with tf.GradientTape() as second:
            second.watch(hidden)
            loss = tf.reduce_mean(tf.square(hidden @ w2 - y))
        g2, g_hidden = second.gradient(loss, [w2, hidden])
        w2.assign_sub(0.1 * g2)
    with tf.device("/gpu:0"):
        w1.assign_sub(0.1 * first.gradient(hidden, w1, output_gradients=g_hidden))
    return loss


x = np.random.rand(64, 16).astype("float32")
for _ in range(10):
    loss = step(x, x[:, :1])
print("loss", float(loss))
