# machine: 2 GPUs
"""A variational autoencoder: functions of TensorFlow in a layer, with its loss."""

import numpy as np
import tensorflow as tf
from tensorflow import keras


def kl_divergence(mean, log_variance):
    return -0.5 * tf.reduce_mean(1 + log_variance - tf.square(mean) - tf.exp(log_variance))


class Sampling(keras.layers.Layer):
    def call(self, moments):
        mean, log_variance = moments
        self.add_loss(kl_divergence(mean, log_variance))
        return mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean))


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    inputs = keras.Input((16,))
    hidden = keras.layers.Dense(32, activation="relu")(inputs)
    sample = Sampling()([keras.layers.Dense(2)(hidden), keras.layers.Dense(2)(hidden)])
    scaled = keras.layers.Lambda(lambda t: tf.math.tanh(t))(sample)
    vae = keras.Model(inputs, keras.layers.Dense(16)(scaled))
    vae.compile("adam", "mse")
x = np.random.rand(512, 16).astype("float32")
vae.fit(x, x, batch_size=64)
