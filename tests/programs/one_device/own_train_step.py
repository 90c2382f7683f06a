"""A variational autoencoder as a Keras model with a training step of its own."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(7)
x = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.layers.Dense(8, activation="tanh")
        self.means, self.spreads = keras.layers.Dense(3), keras.layers.Dense(3)
        self.decoder = keras.layers.Dense(6)
        self.seeds = keras.random.SeedGenerator(9)
        self.total = keras.metrics.Mean(name="total")

    def call(self, inputs):
        hidden = self.encoder(inputs)
        mean, spread = self.means(hidden), self.spreads(hidden)
        drawn = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        return self.decoder(mean + tf.exp(0.5 * spread) * drawn), mean, spread

    def train_step(self, data):
        with tf.GradientTape() as tape:
            outputs, mean, spread = self(data, training=True)
            apart = tf.reduce_sum(tf.square(outputs - data), axis=1)
            divergence = -0.5 * tf.reduce_mean(1 + spread - tf.square(mean) - tf.exp(spread))
            loss = tf.reduce_mean(apart) + divergence
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.total.update_state(loss)
        return {"total": self.total.result()}


model = Autoencoder()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(x, batch_size=16, epochs=2, verbose=0)
np.savez(sys.argv[1], np.array(history.history["total"]), *model.get_weights())
