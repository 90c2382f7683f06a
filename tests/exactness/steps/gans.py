"""Adversarial training: several networks, optimizers and tapes in one step."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from .case import BuiltStep, adam, case, integers, mlp, normal, of_shape, sgd, state

CROSS_ENTROPY = keras.losses.BinaryCrossentropy(from_logits=True)


def with_noise(rng: Any, n: int) -> tuple[Any, ...]:
    """Return real samples and the generator's noise."""
    return normal(rng, n, 8), normal(rng, n, 3)


class MinibatchDeviation(layers.Layer):
    """Appends the mean standard deviation over the batch to every sample."""

    def call(self, x: Any) -> Any:
        deviation = tf.sqrt(tf.math.reduce_variance(x, axis=0) + 1e-4)
        mean = tf.reduce_mean(deviation)
        return tf.concat([x, tf.fill([tf.shape(x)[0], 1], mean)], axis=1)


@case("gans/two_tapes")
def two_tapes() -> BuiltStep:
    generator, discriminator = mlp(3, 8, 8), mlp(8, 8, 1)
    of_generator = adam(generator.trainable_variables)
    of_discriminator = adam(discriminator.trainable_variables)

    def step(real: Any, noise: Any) -> Any:
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            made = generator(noise, training=True)
            on_real = discriminator(real, training=True)
            on_made = discriminator(made, training=True)
            gen_loss = CROSS_ENTROPY(tf.ones_like(on_made), on_made)
            disc_loss = CROSS_ENTROPY(tf.ones_like(on_real), on_real)
            disc_loss += CROSS_ENTROPY(tf.zeros_like(on_made), on_made)
        of_gen = gen_tape.gradient(gen_loss, generator.trainable_variables)
        of_disc = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
        of_generator.apply_gradients(zip(of_gen, generator.trainable_variables, strict=True))
        of_discriminator.apply_gradients(
            zip(of_disc, discriminator.trainable_variables, strict=True)
        )
        return gen_loss, disc_loss

    return BuiltStep(
        step=step,
        batch=with_noise,
        variables=state(generator, discriminator, of_generator, of_discriminator),
        tolerance=1e-4,  # a bias near zero: 3e-8 is 2e-5 of it
    )


@case("gans/dcgan_with_real_and_made_in_one_batch")
def combined() -> BuiltStep:
    discriminator = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, strides=2, padding="same", activation="tanh"),
            layers.Conv2D(6, 3, strides=2, padding="same", activation="tanh"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
        ]
    )
    generator = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(2 * 2 * 5),
            layers.Reshape((2, 2, 5)),
            layers.Conv2DTranspose(6, 4, strides=2, padding="same", activation="tanh"),
            layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="tanh"),
        ]
    )
    seeds = keras.random.SeedGenerator(7)
    of_generator = adam(generator.trainable_variables)
    of_discriminator = adam(discriminator.trainable_variables)
    disc_tracker, gen_tracker = keras.metrics.Mean(), keras.metrics.Mean()

    def step(real: Any) -> Any:
        size = tf.shape(real)[0]
        noise = keras.random.normal((size, 5), seed=seeds)
        images = tf.concat([generator(noise), real], axis=0)
        labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
        labels += 0.05 * keras.random.uniform(tf.shape(labels), seed=seeds)
        with tf.GradientTape() as tape:
            disc_loss = CROSS_ENTROPY(labels, discriminator(images))
        weights = discriminator.trainable_weights
        of_discriminator.apply(tape.gradient(disc_loss, weights), weights)
        noise = keras.random.normal((size, 5), seed=seeds)
        with tf.GradientTape() as tape:
            gen_loss = CROSS_ENTROPY(tf.zeros((size, 1)), discriminator(generator(noise)))
        weights = generator.trainable_weights
        of_generator.apply(tape.gradient(gen_loss, weights), weights)
        disc_tracker.update_state(disc_loss)
        gen_tracker.update_state(gen_loss)
        return {"d_loss": disc_tracker.result(), "g_loss": gen_tracker.result()}

    holders = (generator, discriminator, of_generator, of_discriminator)
    return BuiltStep(
        step=step,
        batch=of_shape(8, 8, 1),
        variables=[*state(*holders, disc_tracker, gen_tracker), seeds.state],
    )


@case("gans/wgan_gp")
def wgan_gp() -> BuiltStep:
    generator, critic = mlp(3, 8, 8), mlp(8, 10, 1, activation="gelu")
    of_generator = adam(generator.trainable_variables)
    of_critic = adam(critic.trainable_variables)

    def penalty_on(real: Any, made: Any, alpha: Any) -> Any:
        between = real + alpha * (made - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = critic(between, training=True)
        slope = tape.gradient(score, [between])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(slope), axis=1) + 1e-6)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def step(real: Any, noise: Any) -> Any:
        size = tf.shape(real)[0]
        for index in range(2):
            draw = tf.random.stateless_uniform([size, 1], seed=[index, 3])
            with tf.GradientTape() as tape:
                made = generator(noise, training=True)
                cost = tf.reduce_mean(critic(made)) - tf.reduce_mean(critic(real))
                cost += 10.0 * penalty_on(real, made, draw)
            weights = critic.trainable_variables
            of_critic.apply(tape.gradient(cost, weights), weights)
        with tf.GradientTape() as tape:
            gen_loss = -tf.reduce_mean(critic(generator(noise, training=True)))
        weights = generator.trainable_variables
        of_generator.apply(tape.gradient(gen_loss, weights), weights)
        return {"critic": cost, "generator": gen_loss}

    return BuiltStep(
        step=step,
        batch=with_noise,
        variables=state(generator, critic, of_generator, of_critic),
        same_bits=False,
    )


@case("gans/wgan_with_clipped_weights")
def wgan_clipped() -> BuiltStep:
    generator, critic = mlp(3, 8, 8), mlp(8, 8, 1)
    of_generator = sgd(generator.trainable_variables)
    of_critic = sgd(critic.trainable_variables)

    def step(real: Any, noise: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            made = critic(generator(noise))
            cost = tf.reduce_mean(made) - tf.reduce_mean(critic(real))
            gen_loss = -tf.reduce_mean(made)
        of_critic.apply(tape.gradient(cost, critic.trainable_variables), critic.trainable_variables)
        of_generator.apply(
            tape.gradient(gen_loss, generator.trainable_variables), generator.trainable_variables
        )
        del tape
        for weight in critic.trainable_variables:
            weight.assign(tf.clip_by_value(weight, -0.3, 0.3))
        return cost

    return BuiltStep(
        step=step, batch=with_noise, variables=state(generator, critic, of_generator, of_critic)
    )


@case("gans/minibatch_deviation_and_relativistic_loss")
def relativistic() -> BuiltStep:
    generator = mlp(3, 8, 8)
    discriminator = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(8, activation="tanh"),
            MinibatchDeviation(),
            layers.Dense(1, use_bias=False),
        ]
    )
    of_generator = adam(generator.trainable_variables)
    of_discriminator = adam(discriminator.trainable_variables)

    def step(real: Any, noise: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            on_real, on_made = discriminator(real), discriminator(generator(noise))
            real_over_made = on_real - tf.reduce_mean(on_made)
            made_over_real = on_made - tf.reduce_mean(on_real)
            disc_loss = tf.reduce_mean(tf.nn.softplus(-real_over_made))
            disc_loss += tf.reduce_mean(tf.nn.softplus(made_over_real))
            gen_loss = tf.reduce_mean(tf.nn.softplus(-made_over_real))
            gen_loss += tf.reduce_mean(tf.nn.softplus(real_over_made))
        for network, optimizer, loss in (
            (discriminator, of_discriminator, disc_loss),
            (generator, of_generator, gen_loss),
        ):
            weights = network.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        return disc_loss / 2

    return BuiltStep(
        step=step,
        batch=with_noise,
        variables=state(generator, discriminator, of_generator, of_discriminator),
    )


@case("gans/spectral_normalisation_and_hinge")
def spectral() -> BuiltStep:
    generator = mlp(3, 8, 8)
    discriminator = keras.Sequential(
        [
            keras.Input((8,)),
            layers.SpectralNormalization(layers.Dense(8, activation="tanh")),
            layers.SpectralNormalization(layers.Dense(1), power_iterations=2),
        ]
    )
    of_generator = sgd(generator.trainable_variables)
    of_discriminator = sgd(discriminator.trainable_variables)

    def step(real: Any, noise: Any) -> Any:
        with tf.GradientTape() as tape:
            on_real = discriminator(real, training=True)
            on_made = discriminator(generator(noise, training=True), training=True)
            disc_loss = tf.reduce_mean(tf.nn.softplus(1.0 - on_real))
            disc_loss += tf.reduce_mean(tf.nn.softplus(1.0 + on_made))
            disc_loss *= 0.5
        weights = discriminator.trainable_variables
        of_discriminator.apply(tape.gradient(disc_loss, weights), weights)
        with tf.GradientTape() as tape:
            gen_loss = -tf.reduce_mean(discriminator(generator(noise), training=False))
        weights = generator.trainable_variables
        of_generator.apply(tape.gradient(gen_loss, weights), weights)
        return disc_loss, gen_loss

    return BuiltStep(
        step=step,
        batch=with_noise,
        variables=state(generator, discriminator, of_generator, of_discriminator),
        # The last bias is a sum of terms near 1/2 that cancel to 9e-4: one rounding is 1e-5 of it.
        tolerance=3e-5,
    )


@case("gans/conditional_with_batchnorm_and_r1")
def conditional() -> BuiltStep:
    generator = keras.Sequential(
        [
            keras.Input((7,)),
            layers.Dense(8, use_bias=False),
            layers.BatchNormalization(momentum=0.8),
            layers.Activation("tanh"),
            layers.Dense(8),
        ]
    )
    discriminator = mlp(12, 8, 1)
    of_generator = adam(generator.trainable_variables)
    of_discriminator = adam(discriminator.trainable_variables)

    def step(real: Any, noise: Any, label: Any) -> Any:
        one_hot = tf.one_hot(label, 4)
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(real)
                on_real = discriminator(tf.concat([real, one_hot], 1))
            slope = inner.gradient(on_real, real)
            made = generator(tf.concat([noise, one_hot], 1), training=True)
            on_made = discriminator(tf.concat([made, one_hot], 1))
            loss = tf.reduce_mean(tf.nn.softplus(-on_real)) + tf.reduce_mean(
                tf.nn.softplus(on_made)
            )
            loss += 0.5 * 10.0 * tf.reduce_mean(tf.reduce_sum(tf.square(slope), axis=1))
        weights = discriminator.trainable_variables
        of_discriminator.apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            made = generator(tf.concat([noise, one_hot], 1), training=True)
            on_made = discriminator(tf.concat([made, one_hot], 1))
            gen_loss = tf.reduce_mean(tf.nn.softplus(-on_made))
        weights = generator.trainable_variables
        of_generator.apply(tape.gradient(gen_loss, weights), weights)
        return {"d": loss, "g": gen_loss}

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 8), normal(rng, n, 3), integers(rng, 4, n)

    return BuiltStep(
        step=step,
        batch=batch,
        variables=state(generator, discriminator, of_generator, of_discriminator),
    )
