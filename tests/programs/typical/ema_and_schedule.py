"""A moving average of the weights, and a rate and a weight that Python computes."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
x = np.random.default_rng(0).normal(size=(60, 8)).astype("float32")
y = np.sin(x[:, :1])
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
average = [tf.Variable(v) for v in model.trainable_variables]
optimizer = keras.optimizers.SGD(0.1)
seen = []
step = 0

for epoch in range(5):
    for a, b in data:
        optimizer.learning_rate = 0.05 * (1 + np.cos(np.pi * step / 20))
        beta = min(1.0, (step + 1) / 8)
        with tf.GradientTape() as tape:
            made = model(a, training=True)
            loss = tf.reduce_mean(tf.square(made - b)) + beta * 0.1 * tf.reduce_mean(made**2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        decay = min(0.99, (1 + step) / (10 + step))
        for mean, weight in zip(average, model.trainable_variables):
            mean.assign(decay * mean + (1 - decay) * weight)
        step += 1
        seen.append(float(loss))

np.savez(sys.argv[1], np.array(seen), *model.get_weights(), *[v.numpy() for v in average])
