"""Variational autoencoder with its own train_step (the Keras example, smaller)."""

import numpy as np
import tensorflow as tf
import keras
from keras import layers, ops

LATENT = 4
SIDE = 16


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = keras.random.normal(ops.shape(z_mean), seed=self.seed_generator)
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


def build_encoder():
    inputs = keras.Input((SIDE, SIDE, 1))
    x = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Dense(32, activation="relu")(layers.Flatten()(x))
    z_mean = layers.Dense(LATENT, name="z_mean")(x)
    z_log_var = layers.Dense(LATENT, name="z_log_var")(x)
    return keras.Model(inputs, [z_mean, z_log_var, Sampling()([z_mean, z_log_var])])


def build_decoder():
    inputs = keras.Input((LATENT,))
    x = layers.Dense(4 * 4 * 32, activation="relu")(inputs)
    x = layers.Reshape((4, 4, 32))(x)
    x = layers.Conv2DTranspose(32, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu")(x)
    outputs = layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x)
    return keras.Model(inputs, outputs)


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_tracker = keras.metrics.Mean(name="loss")
        self.recon_tracker = keras.metrics.Mean(name="reconstruction")
        self.kl_tracker = keras.metrics.Mean(name="kl")

    @property
    def metrics(self):
        return [self.total_tracker, self.recon_tracker, self.kl_tracker]

    def call(self, x, training=False):
        return self.decoder(self.encoder(x, training=training)[2], training=training)

    def losses_of(self, x, training):
        z_mean, z_log_var, z = self.encoder(x, training=training)
        decoded = self.decoder(z, training=training)
        recon = ops.mean(ops.sum(keras.losses.binary_crossentropy(x, decoded), axis=(1, 2)))
        kl = -0.5 * (1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var))
        return recon, ops.mean(ops.sum(kl, axis=1))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            recon, kl = self.losses_of(x, training=True)
            loss = recon + kl
        grads = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        return self.track(loss, recon, kl)

    def test_step(self, x):
        recon, kl = self.losses_of(x, training=False)
        return self.track(recon + kl, recon, kl)

    def track(self, loss, recon, kl):
        self.total_tracker.update_state(loss)
        self.recon_tracker.update_state(recon)
        self.kl_tracker.update_state(kl)
        return {m.name: m.result() for m in self.metrics}


def squares(n, seed):
    rng = np.random.default_rng(seed)
    data = np.zeros((n, SIDE, SIDE, 1), "float32")
    for image in data:
        top, left = rng.integers(1, 8, 2)
        height, width = rng.integers(3, 8, 2)
        image[top : top + height, left : left + width] = 255
    return data


if __name__ == "__main__":
    keras.utils.set_random_seed(1)
    train_images, test_images = squares(2500, 1) / 255.0, squares(400, 2) / 255.0
    vae = VAE(build_encoder(), build_decoder())
    vae.compile(optimizer=keras.optimizers.Adam(2e-3))
    vae.fit(train_images, epochs=6, batch_size=64, validation_data=(test_images,), verbose=2)
    flat = vae.decoder.predict(np.random.normal(size=(9, LATENT)), verbose=0)
    print("generated", flat.shape, "mean brightness", float(flat.mean()))
