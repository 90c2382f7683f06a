"""GAN on tiny pictures of blobs, following the DCGAN tutorial."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

BUFFER_SIZE = 2000
BATCH_SIZE = 100
EPOCHS = 5
NOISE_DIM = 32
keras.utils.set_random_seed(99)


def blobs(n):
    rng = np.random.default_rng(1)
    cx, cy = rng.uniform(4, 12, (2, n, 1, 1))
    yy, xx = np.mgrid[0:16, 0:16]
    img = np.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / 6.0) * 255
    return img[..., None].astype("float32")


images = (blobs(BUFFER_SIZE) - 127.5) / 127.5  # to [-1, 1]
dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(BUFFER_SIZE)
dataset = dataset.batch(BATCH_SIZE, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

generator = keras.Sequential(
    [
        keras.Input((NOISE_DIM,)),
        layers.Dense(4 * 4 * 32, use_bias=False),
        layers.BatchNormalization(),
        layers.LeakyReLU(),
        layers.Reshape((4, 4, 32)),
        layers.Conv2DTranspose(16, 5, strides=2, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.LeakyReLU(),
        layers.Conv2DTranspose(1, 5, strides=2, padding="same", activation="tanh"),
    ],
    name="generator",
)

discriminator = keras.Sequential(
    [
        keras.Input((16, 16, 1)),
        layers.Conv2D(16, 5, strides=2, padding="same"),
        layers.LeakyReLU(),
        layers.Dropout(0.3),
        layers.Conv2D(32, 5, strides=2, padding="same"),
        layers.LeakyReLU(),
        layers.Dropout(0.3),
        layers.Flatten(),
        layers.Dense(1),
    ],
    name="discriminator",
)

cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
generator_optimizer = keras.optimizers.Adam(1e-3, beta_1=0.5)
discriminator_optimizer = keras.optimizers.Adam(2e-4, beta_1=0.5)


def discriminator_loss(real_output, fake_output):
    real_loss = cross_entropy(tf.ones_like(real_output), real_output)
    fake_loss = cross_entropy(tf.zeros_like(fake_output), fake_output)
    return real_loss + fake_loss


def generator_loss(fake_output):
    return cross_entropy(tf.ones_like(fake_output), fake_output)


@tf.function
def train_step(images):
    noise = tf.random.normal([BATCH_SIZE, NOISE_DIM])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        fakes = generator(noise, training=True)
        real_output = discriminator(images, training=True)
        fake_output = discriminator(fakes, training=True)
        gen_loss = generator_loss(fake_output)
        disc_loss = discriminator_loss(real_output, fake_output)
    gen_grads = gen_tape.gradient(gen_loss, generator.trainable_variables)
    disc_grads = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gen_grads, generator.trainable_variables))
    discriminator_optimizer.apply_gradients(zip(disc_grads, discriminator.trainable_variables))
    return gen_loss, disc_loss


fixed_noise = tf.random.normal([16, NOISE_DIM])
gen_mean, disc_mean = keras.metrics.Mean(), keras.metrics.Mean()
for epoch in range(EPOCHS):
    for batch in dataset:
        g, d = train_step(batch)
        gen_mean.update_state(g)
        disc_mean.update_state(d)
    samples = generator(fixed_noise, training=False)
    print(
        f"epoch {epoch}: generator {float(gen_mean.result()):.3f} "
        f"discriminator {float(disc_mean.result()):.3f} "
        f"brightest {float(tf.reduce_max(samples)):.2f}"
    )
    gen_mean.reset_state()
    disc_mean.reset_state()
np.save("samples.npy", samples.numpy())
