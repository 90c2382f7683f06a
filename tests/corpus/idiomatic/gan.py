# machine: 1 GPU
"""A small GAN with two optimizers in one step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

NOISE = 16

generator = keras.Sequential(
    [keras.Input((NOISE,)), layers.Dense(7 * 7 * 4), layers.Reshape((7, 7, 4)),
     layers.Conv2DTranspose(8, 4, strides=2, padding="same"), layers.LeakyReLU(),
     layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="tanh")],
    name="generator",
)  # fmt: skip
discriminator = keras.Sequential(
    [keras.Input((28, 28, 1)), layers.Conv2D(8, 4, strides=2, padding="same"), layers.LeakyReLU(),
     layers.Flatten(), layers.Dense(1)],
    name="discriminator",
)  # fmt: skip

cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
generator_optimizer = keras.optimizers.Adam(1e-4)
discriminator_optimizer = keras.optimizers.Adam(1e-4)


def discriminator_loss(real, fake):
    return cross_entropy(tf.ones_like(real), real) + cross_entropy(tf.zeros_like(fake), fake)


def generator_loss(fake):
    return cross_entropy(tf.ones_like(fake), fake)


@tf.function
def train_step(images):
    noise = tf.random.normal([tf.shape(images)[0], NOISE])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated = generator(noise, training=True)
        real_output = discriminator(images, training=True)
        fake_output = discriminator(generated, training=True)
        gen_loss = generator_loss(fake_output)
        disc_loss = discriminator_loss(real_output, fake_output)
    gen_gradients = gen_tape.gradient(gen_loss, generator.trainable_variables)
    disc_gradients = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gen_gradients, generator.trainable_variables))
    discriminator_optimizer.apply_gradients(zip(disc_gradients, discriminator.trainable_variables))
    return gen_loss, disc_loss


images = np.random.default_rng(0).uniform(-1, 1, size=(256, 28, 28, 1)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(256).batch(64).prefetch(2)
seed = tf.random.normal([4, NOISE])

for epoch in range(2):
    for image_batch in dataset:
        gen_loss, disc_loss = train_step(image_batch)
    print("epoch", epoch, "generator", float(gen_loss), "discriminator", float(disc_loss))
samples = generator(seed, training=False).numpy()
np.save("samples.npy", samples)
