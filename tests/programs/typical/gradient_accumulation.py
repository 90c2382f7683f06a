"""Gradients of several batches, added up in Python."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
x = np.random.default_rng(0).normal(size=(60, 8)).astype("float32")
y = np.sin(x[:, :1])
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
loss_of = keras.losses.MeanSquaredError()
seen = []
num_batches = 2
sums = [tf.zeros_like(v) for v in model.trainable_variables]

for step, (a, b) in enumerate(data.repeat(3)):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True)) / num_batches
    gradients = tape.gradient(loss, model.trainable_variables)
    sums = [total + gradient for total, gradient in zip(sums, gradients)]
    if (step + 1) % num_batches == 0:
        optimizer.apply_gradients(zip(sums, model.trainable_variables))
        sums = [tf.zeros_like(v) for v in model.trainable_variables]
    seen.append(float(loss))

np.savez(sys.argv[1], np.array(seen), *model.get_weights())
