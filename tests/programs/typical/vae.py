"""A VAE whose model draws noise by `tf.random.normal`."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
x = np.random.default_rng(0).normal(size=(60, 8)).astype("float32")
y = np.sin(x[:, :1])


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = keras.layers.Dense(4), keras.layers.Dense(8)

    def call(self, inputs):
        mean, log_variance = tf.split(self.encoder(inputs), 2, axis=1)
        noise = tf.random.normal(tf.shape(mean))
        made = self.decoder(mean + tf.exp(log_variance / 2) * noise)
        divergence = tf.square(mean) + tf.exp(log_variance) - 1.0 - log_variance
        return made, tf.reduce_mean(tf.reduce_sum(divergence, 1)) / 2


model, optimizer = VAE(), keras.optimizers.SGD(0.02)
seen = []
for epoch in range(3):
    for start in range(0, len(x), 16):
        a = tf.constant(x[start : start + 16])
        with tf.GradientTape() as tape:
            made, divergence = model(a)
            loss = tf.reduce_mean(tf.square(made - a)) + 0.1 * divergence
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        seen.append(float(loss))

np.savez(sys.argv[1], np.array(seen), *model.get_weights())
