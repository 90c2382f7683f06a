# machine: 2 GPUs
"""The layers are spread over two GPUs, the optimizer is built on the first."""

import keras
import numpy as np
import tensorflow as tf

with tf.device("/gpu:0"):
    first = keras.layers.Dense(256, activation="relu")
    first.build((None, 64))
with tf.device("/gpu:1"):
    second = keras.layers.Dense(64)
    second.build((None, 256))
variables = first.trainable_variables + second.trainable_variables

with tf.device("/gpu:0"):  # may: DOC-305
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(variables)  # finding: DOC-305


def forward(x):
    with tf.device("/gpu:0"):
        x = first(x)
    with tf.device("/gpu:1"):
        return second(x)


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(forward(x) - x))
    gradients = tape.gradient(loss, variables)  # finding: DOC-301
    optimizer.apply_gradients(zip(gradients, variables))
    return loss


data = np.random.normal(size=(640, 64)).astype("float32")
for i in range(0, 640, 64):
    loss = train_step(data[i : i + 64])
print("loss", float(loss))
