# machine: 2 GPUs
"""Made on a machine with eight cards, run on one with two."""

import numpy as np
import tensorflow as tf

vectors = tf.constant(np.random.normal(size=(2000, 64)).astype("float32"))

with tf.device("/GPU:7"):  # finding: DOC-107
    table = tf.Variable(tf.random.normal([64, 256], stddev=0.05))
    bias = tf.Variable(tf.zeros([256]))

optimizer = tf.keras.optimizers.Adam()


@tf.function
def step(batch):
    with tf.device("/GPU:7"):  # finding: DOC-107
        with tf.GradientTape() as tape:
            code = tf.nn.relu(batch @ table + bias)
            loss = tf.reduce_mean((code @ tf.transpose(table) - batch) ** 2)
        gradients = tape.gradient(loss, [table, bias])
        optimizer.apply_gradients(zip(gradients, [table, bias]))
    return loss


for epoch in range(3):
    for i in range(0, 2000, 200):
        loss = step(vectors[i : i + 200])  # may: DOC-201
    tf.print("epoch", epoch, "loss", loss)
