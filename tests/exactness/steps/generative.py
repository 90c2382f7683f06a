"""Adversarial training, autoencoders, flows and diffusion."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from exactness.models import sequential

from .case import (
    BuiltStep,
    adam,
    case,
    columns,
    learn,
    learned,
    mlp,
    normals,
    of_shape,
    sgd,
    state,
    to_regress,
    trained,
    whole,
    written,
)

CROSS_ENTROPY = keras.losses.BinaryCrossentropy(from_logits=True)


with_noise = to_regress(8, 3)


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
    discriminator = sequential(
        (8, 8, 1),
        layers.Conv2D(4, 3, strides=2, padding="same", activation="tanh"),
        layers.Conv2D(6, 3, strides=2, padding="same", activation="tanh"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(1),
    )
    generator = sequential(
        (5,),
        layers.Dense(2 * 2 * 5),
        layers.Reshape((2, 2, 5)),
        layers.Conv2DTranspose(6, 4, strides=2, padding="same", activation="tanh"),
        layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="tanh"),
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


@written(
    "gans/wgan_with_clipped_weights",
    with_noise,
    lambda: (*trained(mlp(3, 8, 8)), *trained(mlp(8, 8, 1))),
)
def wgan_clipped(
    generator: Any, of_generator: Any, critic: Any, of_critic: Any, real: Any, noise: Any
) -> Any:
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


@case("gans/minibatch_deviation_and_relativistic_loss")
def relativistic() -> BuiltStep:
    generator = mlp(3, 8, 8)
    discriminator = sequential(
        (8,),
        layers.Dense(8, activation="tanh"),
        MinibatchDeviation(),
        layers.Dense(1, use_bias=False),
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
    discriminator = sequential(
        (8,),
        layers.SpectralNormalization(layers.Dense(8, activation="tanh")),
        layers.SpectralNormalization(layers.Dense(1), power_iterations=2),
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
    generator = sequential(
        (7,),
        layers.Dense(8, use_bias=False),
        layers.BatchNormalization(momentum=0.8),
        layers.Activation("tanh"),
        layers.Dense(8),
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

    return BuiltStep(
        step=step,
        batch=columns(normals(8), normals(3), whole(4)),
        variables=state(generator, discriminator, of_generator, of_discriminator),
    )


class Autoencoder(keras.Model):
    """Two networks; the encoder gives a mean and a logarithm of a variance."""

    def __init__(self, latent: int = 3) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(8, 10, 2 * latent), mlp(latent, 10, 8)

    def call(self, x: Any) -> Any:
        return tf.split(self.encoder(x), 2, axis=-1)


def gaussian_kl(mean: Any, log_variance: Any) -> Any:
    """Return the divergence from a standard normal, for each latent number."""
    return -0.5 * (1 + log_variance - tf.square(mean) - tf.exp(log_variance))


@learned(
    "vaes/half_of_mean_beside_reconstruction",
    of_shape(8),
    lambda: (Autoencoder(), tf.Variable(0, dtype=tf.int64, trainable=False)),
)
def stateless(model: Any, counter: Any, x: Any) -> Any:
    mean, log_variance = model(x)
    seed = tf.stack([tf.cast(counter, tf.int32), 5])
    noise = tf.random.stateless_normal(tf.shape(mean), seed=seed)
    counter.assign_add(1)
    decoded = model.decoder(mean + tf.exp(0.5 * log_variance) * noise)
    kl = -0.5 * tf.reduce_mean(1 + log_variance - mean**2 - tf.exp(log_variance))
    return tf.reduce_mean(tf.square(x - decoded)) + kl


@learned("vaes/keras_random", of_shape(8), lambda: (Autoencoder(), keras.random.SeedGenerator(11)))
def keras_random(model: Any, seeds: Any, x: Any) -> Any:
    mean, log_variance = model(x)
    noise = keras.random.normal(tf.shape(mean), seed=seeds)
    decoded = model.decoder(mean + tf.exp(0.5 * log_variance) * noise)
    reconstruction = tf.reduce_mean(tf.reduce_sum(tf.square(x - decoded), axis=-1))
    kl = tf.reduce_mean(tf.reduce_sum(gaussian_kl(mean, log_variance), axis=1))
    return 0.1 * (reconstruction + kl)


@case("vaes/sampling_layer_and_trackers")
def sampling_layer() -> BuiltStep:
    class Sampling(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seed_generator = keras.random.SeedGenerator(1337)

        def call(self, inputs: Any) -> Any:
            mean, log_variance = inputs
            size, width = keras.ops.shape(mean)[0], keras.ops.shape(mean)[1]
            noise = keras.random.normal(shape=(size, width), seed=self.seed_generator)
            return mean + keras.ops.exp(0.5 * log_variance) * noise

    model, sampling = Autoencoder(), Sampling()
    optimizer = adam(model.trainable_weights)
    total, rebuilt = keras.metrics.Mean(name="loss"), keras.metrics.Mean(name="rebuilt")

    def step(data: Any) -> Any:
        with tf.GradientTape() as tape:
            mean, log_variance = model(data)
            decoded = model.decoder(sampling((mean, log_variance)))
            reconstruction = keras.ops.mean(
                keras.ops.sum(
                    keras.losses.binary_crossentropy(
                        keras.ops.sigmoid(data)[..., None], keras.ops.sigmoid(decoded)[..., None]
                    ),
                    axis=1,
                )
            )
            kl = keras.ops.mean(keras.ops.sum(gaussian_kl(mean, log_variance), axis=1))
            loss = reconstruction + kl
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        total.update_state(loss)
        rebuilt.update_state(reconstruction)
        return {"loss": total.result(), "rebuilt": rebuilt.result(), "kl": kl}

    return BuiltStep(
        step=step, batch=of_shape(8), variables=state(model, sampling, optimizer, total, rebuilt)
    )


@learned("vaes/stateful_noise", of_shape(8), lambda: Autoencoder(), stateful_random=True)
def stateful_noise(model: Any, x: Any) -> Any:
    mean, log_variance = model(x)
    decoded = model.decoder(mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean)))
    return tf.reduce_mean(tf.square(x - decoded)) + 0.01 * tf.reduce_mean(
        gaussian_kl(mean, log_variance)
    )


@case("vaes/noise_of_a_tf_generator")
def tf_generator() -> BuiltStep:
    model = Autoencoder()
    generator = tf.random.Generator.from_seed(3, alg="philox")

    def loss_of(x: Any) -> Any:
        mean, log_variance = model(x)
        noise = generator.normal(tf.shape(mean))
        decoded = model.decoder(mean + tf.exp(0.5 * log_variance) * noise)
        return tf.reduce_mean(tf.square(x - decoded)) - 0.5 * 0.1 * tf.reduce_mean(
            1 + log_variance - mean**2 - tf.exp(log_variance)
        )

    return learn(loss_of, model, of_shape(8), extra=[generator.state], stateful_random=True)


@case("vaes/importance_weighted")
def importance_weighted() -> BuiltStep:
    model, draws = Autoencoder(), 5

    def loss_of(x: Any) -> Any:
        mean, log_variance = model(tf.repeat(x, draws, axis=0))
        noise = tf.random.stateless_normal(tf.shape(mean), seed=[4, 2])
        z = mean + tf.exp(0.5 * log_variance) * noise
        wanted = tf.repeat(x, draws, axis=0)
        log_p = -0.5 * tf.reduce_sum(tf.square(wanted - model.decoder(z)) + z[:, :1] ** 2, axis=1)
        log_q = -0.5 * tf.reduce_sum(noise**2 + log_variance, axis=1)
        weights = tf.reshape(log_p - log_q, [-1, draws])
        return -0.1 * tf.reduce_mean(tf.reduce_logsumexp(weights, axis=1))

    return learn(loss_of, model, of_shape(8))


@learned("vaes/total_correlation_over_the_batch", of_shape(8), lambda: Autoencoder(2))
def total_correlation(model: Any, x: Any) -> Any:
    mean, log_variance = model(x)
    noise = tf.random.stateless_normal(tf.shape(mean), seed=[1, 2])
    z = mean + tf.exp(0.5 * log_variance) * noise
    distance = tf.square(z[:, None] - mean[None]) * tf.exp(-log_variance[None])
    log_q = -0.5 * (distance + log_variance[None])
    joint = tf.reduce_logsumexp(tf.reduce_sum(log_q, axis=2), axis=1)
    product = tf.reduce_sum(tf.reduce_logsumexp(log_q, axis=1), axis=1)
    return tf.reduce_mean(tf.square(x - model.decoder(z))) + 0.1 * tf.reduce_mean(joint - product)


@case("vaes/vector_quantised")
def vector_quantised() -> BuiltStep:
    encoder, decoder = mlp(8, 10, 4), mlp(4, 10, 8)
    codes = keras.Variable(keras.random.normal((6, 4), seed=1), name="codes")
    weights = [*encoder.trainable_variables, *decoder.trainable_variables, codes]
    optimizer = sgd(weights)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            z = encoder(x)
            table = tf.convert_to_tensor(codes)
            far = tf.reduce_sum(z**2, 1, keepdims=True) - 2 * z @ tf.transpose(table)
            nearest = tf.argmin(far + tf.reduce_sum(table**2, 1), axis=1)
            code = tf.matmul(tf.one_hot(nearest, 6), table)
            commitment = tf.reduce_mean((tf.stop_gradient(code) - z) ** 2)
            book = tf.reduce_mean((code - tf.stop_gradient(z)) ** 2)
            rebuilt = decoder(z + tf.stop_gradient(code - z))
            loss = tf.reduce_mean((x - rebuilt) ** 2) + 0.25 * commitment + book
        optimizer.apply(tape.gradient(loss, weights), weights)
        used = tf.reduce_mean(tf.one_hot(nearest, 6), axis=0)
        perplexity = tf.exp(-tf.reduce_sum(used * tf.math.log(used + 1e-10)))
        return {"loss": loss, "perplexity": perplexity}

    return BuiltStep(step=step, batch=of_shape(8), variables=[*weights, *optimizer.variables])


@case("vaes/vector_quantised_by_moving_averages")
def moving_codes() -> BuiltStep:
    encoder, decoder = mlp(8, 10, 4), mlp(4, 10, 8)
    codes = tf.Variable(keras.random.normal((6, 4), seed=1), trainable=False)
    counts, sums = tf.Variable(tf.ones([6])), tf.Variable(codes.value())
    weights = [*encoder.trainable_variables, *decoder.trainable_variables]
    optimizer = sgd(weights)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            z = encoder(x)
            far = tf.reduce_sum(tf.square(z[:, None] - codes[None]), axis=-1)
            nearest = tf.argmin(far, axis=1, output_type=tf.int32)
            code = tf.gather(codes, nearest)
            rebuilt = decoder(z + tf.stop_gradient(code - z))
            loss = tf.reduce_mean((x - rebuilt) ** 2) + 0.25 * tf.reduce_mean((code - z) ** 2)
        optimizer.apply(tape.gradient(loss, weights), weights)
        chosen = tf.one_hot(nearest, 6)
        counts.assign(0.9 * counts + 0.1 * tf.reduce_sum(chosen, axis=0))
        sums.assign(0.9 * sums + 0.1 * tf.matmul(chosen, z, transpose_a=True))
        codes.assign(sums / (counts + 1e-2)[:, None])
        return loss, nearest

    return BuiltStep(
        step=step,
        batch=of_shape(8),
        variables=[*weights, *optimizer.variables, codes, counts, sums],
    )


@case("vaes/coupling_flow")
def coupling_flow() -> BuiltStep:
    nets = [mlp(4, 8, 8), mlp(4, 8, 8)]
    weights = [v for net in nets for v in net.trainable_variables]
    optimizer = adam(weights)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            a, b = tf.split(x, 2, axis=1)
            log_det = tf.zeros(tf.shape(x)[:1])
            for net in nets:
                shift, scale = tf.split(net(a), 2, axis=1)
                scale = tf.tanh(scale)
                a, b = b * tf.exp(scale) + shift, a
                log_det += tf.reduce_sum(scale, axis=1)
            z = tf.concat([a, b], axis=1)
            likelihood = -0.5 * tf.reduce_sum(z**2, axis=1) + log_det
            loss = -tf.reduce_mean(likelihood)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return {"bits_per_dim": loss / (8 * tf.math.log(2.0)), "each": likelihood}

    return BuiltStep(step=step, batch=of_shape(8), variables=[*weights, *optimizer.variables])


@case("vaes/diffusion_with_moving_average")
def diffusion() -> BuiltStep:
    model, average = mlp(12, 16, 8, activation="silu"), mlp(12, 16, 8, activation="silu")
    average.set_weights(model.get_weights())
    optimizer = adam(model.trainable_weights)
    seeds = keras.random.SeedGenerator(2)
    signal = tf.constant(tf.linspace(0.99, 0.1, 10), tf.float32)

    def step(x: Any) -> Any:
        size = tf.shape(x)[0]
        t = keras.random.randint((size,), 0, 10, seed=seeds)
        noise = keras.random.normal(tf.shape(x), seed=seeds)
        rate = tf.gather(signal, t)[:, None]
        noisy = tf.sqrt(rate) * x + tf.sqrt(1 - rate) * noise
        angle = tf.cast(t, tf.float32)[:, None] / [1.0, 10.0]
        with tf.GradientTape() as tape:
            embedded = tf.concat([noisy, tf.sin(angle), tf.cos(angle)], axis=1)
            loss = tf.reduce_mean(tf.square(noise - model(embedded, training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
        for weight, mean in zip(model.weights, average.weights, strict=True):
            mean.assign(0.9 * mean + 0.1 * weight)
        return loss

    return BuiltStep(
        step=step, batch=of_shape(8), variables=[*state(model, average, optimizer), seeds.state]
    )
