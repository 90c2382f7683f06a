"""A GAN: two models, two optimizers, two tapes, one step."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
real = np.random.default_rng(0).normal(2.0, 0.5, size=(60, 4)).astype("float32")
layers = keras.layers
generator = keras.Sequential([keras.Input((3,)), layers.Dense(8, "relu"), layers.Dense(4)])
critic = keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(1)])
of_generator, of_critic = keras.optimizers.Adam(1e-2), keras.optimizers.Adam(1e-2)
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def step(images, noise):
    with tf.GradientTape() as first, tf.GradientTape() as second:
        made = generator(noise, training=True)
        on_real, on_made = critic(images, training=True), critic(made, training=True)
        generator_loss = cross_entropy(tf.ones_like(on_made), on_made)
        critic_loss = cross_entropy(tf.ones_like(on_real), on_real)
        critic_loss += cross_entropy(tf.zeros_like(on_made), on_made)
    variables = generator.trainable_variables
    of_generator.apply_gradients(zip(first.gradient(generator_loss, variables), variables))
    variables = critic.trainable_variables
    of_critic.apply_gradients(zip(second.gradient(critic_loss, variables), variables))
    return generator_loss, critic_loss


numbers = []
for start in range(0, len(real), 24):
    images = real[start : start + 24]
    noise = np.random.default_rng(start).normal(size=(len(images), 3)).astype("float32")
    numbers += [float(loss) for loss in step(images, noise)]

np.savez(sys.argv[1], np.array(numbers), *generator.get_weights(), *critic.get_weights())
