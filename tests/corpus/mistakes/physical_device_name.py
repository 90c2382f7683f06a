# machine: 2 GPUs
"""Two towers by hand, with the names that nvidia-smi's friends print."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(0)

w_left = tf.Variable(tf.random.normal([32, 16], stddev=0.1))
w_right = tf.Variable(tf.random.normal([32, 16], stddev=0.1))
w_out = tf.Variable(tf.random.normal([32, 1], stddev=0.1))
optimizer = tf.keras.optimizers.SGD(0.05)


@tf.function
def train_step(left, right, target):
    with tf.GradientTape() as tape:
        with tf.device("/physical_device:GPU:0"):  # finding: RUN-008
            a = tf.nn.relu(left @ w_left)
        with tf.device("/physical_device:GPU:1"):  # finding: RUN-008
            b = tf.nn.relu(right @ w_right)
        loss = tf.reduce_mean((tf.concat([a, b], 1) @ w_out - target) ** 2)
    variables = [w_left, w_right, w_out]
    gradients = tape.gradient(loss, variables)  # may: DOC-301
    optimizer.apply_gradients(zip(gradients, variables))
    return loss


for step in range(10):
    batch = np.random.normal(size=(64, 32)).astype("float32")
    loss = train_step(batch, batch[:, ::-1], batch[:, :1])
print("loss", float(loss))
