"""A step that nobody decorated, which keeps its losses in a list in the middle of it."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
x = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")
y = np.sin(x[:, :1])
model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.01)
seen = []


def train_step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a) - b))
    seen.append(float(loss))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


for start in range(0, 40, 16):
    train_step(x[start : start + 16], y[start : start + 16])
np.savez(sys.argv[1], np.array(seen), *model.get_weights())
