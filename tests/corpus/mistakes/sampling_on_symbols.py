"""A variational autoencoder, as written for Keras 2: functions of TensorFlow on symbols."""

import numpy as np
import tensorflow as tf
from tensorflow import keras


def encoder(inputs):
    hidden = keras.layers.Dense(32, activation="relu")(inputs)
    return keras.layers.Dense(2)(hidden), keras.layers.Dense(2)(hidden)


inputs = keras.Input((16,))
mean, log_variance = encoder(inputs)
noise = keras.layers.GaussianNoise(1.0)(mean)
sample = mean + tf.exp(0.5 * log_variance) * noise  # finding: DOC-006
outputs = keras.layers.Dense(16)(sample)
strategy = tf.distribute.MirroredStrategy()
vae = keras.Model(inputs, outputs)  # may: DOC-215
divergence = -0.5 * tf.reduce_mean(1 + log_variance - tf.square(mean))  # may: DOC-006
vae.add_loss(divergence)  # may: DOC-006
with strategy.scope():
    vae.compile("adam", "mse")  # may: DOC-215
x = np.random.rand(512, 16).astype("float32")
vae.fit(x, x, batch_size=64)
