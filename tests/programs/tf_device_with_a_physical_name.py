"""A hand-made data parallel loop: one `tf.device` per card, by the names of physical devices.

Without a GPU it takes the CPUs. TensorFlow stops in the first step, on any number of devices:
ValueError: Unknown attribute 'physical_device' is encountered while parsing the device spec.
"""

import sys

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(64, 5)).astype("float32")
y = x[:, :1] * x[:, 1:2]

gpus = tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("CPU")

w1 = tf.Variable(tf.random.normal((5, 10), seed=1) * 0.3)
w2 = tf.Variable(tf.random.normal((10, 1), seed=2) * 0.3)
optimizer = tf.keras.optimizers.Adam(0.01)


def forward(x):
    return tf.nn.relu(x @ w1) @ w2


@tf.function
def train_step(x, y):
    tower_grads = []
    for i, gpu in enumerate(gpus):
        with tf.device(gpu.name):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(forward(x[i :: len(gpus)]) - y[i :: len(gpus)]))
            tower_grads.append(tape.gradient(loss, [w1, w2]))
    grads = [tf.add_n(g) / len(gpus) for g in zip(*tower_grads)]
    optimizer.apply_gradients(zip(grads, [w1, w2]))


for epoch in range(2):
    for start in range(0, 64, 16):
        train_step(x[start : start + 16], y[start : start + 16])

np.savez(sys.argv[1], w1.numpy(), w2.numpy())
print("done")
