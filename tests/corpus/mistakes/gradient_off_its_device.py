# machine: 2 GPUs
"""The big half of the model is on the second GPU; its gradient is not."""

import numpy as np
import tensorflow as tf

w1 = tf.Variable(tf.random.normal([64, 256], stddev=0.1))
with tf.device("/gpu:1"):
    w2 = tf.Variable(tf.random.normal([256, 1024], stddev=0.1))
    w3 = tf.Variable(tf.random.normal([1024, 1], stddev=0.1))
optimizer = tf.keras.optimizers.SGD(0.01)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        with tf.device("/gpu:0"):
            hidden = tf.nn.relu(tf.matmul(x, w1))
        with tf.device("/gpu:1"):
            hidden = tf.nn.relu(tf.matmul(hidden, w2))
            loss = tf.reduce_mean(tf.square(tf.matmul(hidden, w3) - y))
    grads = tape.gradient(loss, [w1, w2, w3])  # finding: DOC-301
    optimizer.apply_gradients(zip(grads, [w1, w2, w3]))
    return loss


x = np.random.normal(size=(512, 64)).astype("float32")
y = x[:, :1] * 2
for epoch in range(2):
    for i in range(0, 512, 64):
        loss = train_step(x[i : i + 64], y[i : i + 64])
    print("epoch", epoch, "loss", float(loss))
