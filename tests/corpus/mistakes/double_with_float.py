# machine: 1 GPU
"""A constant of float64 in a loop of float32."""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
weights = tf.Variable(tf.zeros([8, 1]))
mean = tf.constant(np.linspace(-1.0, 1.0, 8), dtype=tf.float64)  # may: DOC-309
optimizer = tf.keras.optimizers.SGD(0.05)


@tf.function
def step(x, y):
    x = tf.cast(x, tf.float32)
    with tf.GradientTape() as tape:
        centered = x - mean  # finding: DOC-309
        loss = tf.reduce_mean((tf.matmul(centered, weights) - y) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
    return loss


if __name__ == "__main__":
    for _ in range(20):
        x = rng.normal(size=(64, 8)).astype("float32")
        loss = step(x, x[:, :1])
    print("loss", float(loss))
