"""Wasserstein GAN with gradient penalty on 2-D points. The critic's loss may well be negative."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import Input, Sequential, layers, optimizers, utils

utils.set_random_seed(65)
NOISE, BATCH, ITERATIONS, CRITIC_STEPS, PENALTY = 4, 128, 400, 4, 2.0


def ring(n):
    """Eight blobs on a circle, scaled to about -1..1."""
    rng = np.random.default_rng(0)
    angle = rng.integers(0, 8, n) * np.pi / 4
    return np.stack([np.cos(angle), np.sin(angle)], 1) + rng.normal(0, 0.05, (n, 2))


real_ds = tf.data.Dataset.from_tensor_slices(ring(8000).astype("float32"))
real_ds = real_ds.shuffle(8000).repeat().batch(BATCH).prefetch(tf.data.AUTOTUNE)


def mlp(size_in, size_out, name):
    hidden = [layers.Dense(96, activation="leaky_relu") for _ in range(3)]
    return Sequential([Input((size_in,)), *hidden, layers.Dense(size_out)], name=name)


generator, critic = mlp(NOISE, 2, "generator"), mlp(2, 1, "critic")
g_opt = optimizers.Adam(3e-4, beta_1=0.5, beta_2=0.9)
c_opt = optimizers.Adam(3e-4, beta_1=0.5, beta_2=0.9)


@tf.function
def critic_step(real):
    n = tf.shape(real)[0]
    fake = generator(tf.random.normal((n, NOISE)), training=True)
    mix = tf.random.uniform((n, 1))
    between = mix * real + (1 - mix) * fake
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(between)
            score = critic(between, training=True)
        slope = tf.norm(inner.gradient(score, between) + 1e-12, axis=1)
        wasserstein = tf.reduce_mean(critic(real, training=True)) - tf.reduce_mean(
            critic(fake, training=True)
        )
        loss = PENALTY * tf.reduce_mean((slope - 1.0) ** 2) - wasserstein
    variables = critic.trainable_variables
    c_opt.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return wasserstein


@tf.function
def generator_step():
    with tf.GradientTape() as tape:
        loss = -tf.reduce_mean(critic(generator(tf.random.normal((BATCH, NOISE)), training=True)))
    variables = generator.trainable_variables
    g_opt.apply_gradients(zip(tape.gradient(loss, variables), variables))


real = iter(real_ds)
for iteration in range(1, ITERATIONS + 1):
    for _ in range(CRITIC_STEPS):
        distance = critic_step(next(real))
    generator_step()
    if iteration % 100 == 0:
        fakes = generator(tf.random.normal((1000, NOISE)), training=False)
        radius = tf.norm(fakes, axis=1)
        print(f"{iteration}: distance {distance:.3f} mean radius {tf.reduce_mean(radius):.3f}")
