"""Autoencoders, flows and diffusion: noise of the batch's size, sums of unlike means."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .case import BuiltStep, adam, case, learn, mlp, of_shape, sgd, state


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


@case("vaes/half_of_mean_beside_reconstruction")
def stateless() -> BuiltStep:
    model = Autoencoder()
    counter = tf.Variable(0, dtype=tf.int64, trainable=False)

    def loss_of(x: Any) -> Any:
        mean, log_variance = model(x)
        seed = tf.stack([tf.cast(counter, tf.int32), 5])
        noise = tf.random.stateless_normal(tf.shape(mean), seed=seed)
        counter.assign_add(1)
        decoded = model.decoder(mean + tf.exp(0.5 * log_variance) * noise)
        kl = -0.5 * tf.reduce_mean(1 + log_variance - mean**2 - tf.exp(log_variance))
        return tf.reduce_mean(tf.square(x - decoded)) + kl

    return learn(loss_of, model, of_shape(8), extra=[counter])


@case("vaes/keras_random")
def keras_random() -> BuiltStep:
    model = Autoencoder()
    seeds = keras.random.SeedGenerator(11)

    def loss_of(x: Any) -> Any:
        mean, log_variance = model(x)
        noise = keras.random.normal(tf.shape(mean), seed=seeds)
        decoded = model.decoder(mean + tf.exp(0.5 * log_variance) * noise)
        reconstruction = tf.reduce_mean(tf.reduce_sum(tf.square(x - decoded), axis=-1))
        kl = tf.reduce_mean(tf.reduce_sum(gaussian_kl(mean, log_variance), axis=1))
        return 0.1 * (reconstruction + kl)

    return learn(loss_of, model, of_shape(8), extra=[seeds.state])


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


@case("vaes/stateful_noise")
def stateful_noise() -> BuiltStep:
    model = Autoencoder()

    def loss_of(x: Any) -> Any:
        mean, log_variance = model(x)
        decoded = model.decoder(
            mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean))
        )
        return tf.reduce_mean(tf.square(x - decoded)) + 0.01 * tf.reduce_mean(
            gaussian_kl(mean, log_variance)
        )

    return learn(loss_of, model, of_shape(8), stateful_random=True)


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


@case("vaes/total_correlation_over_the_batch")
def total_correlation() -> BuiltStep:
    model = Autoencoder(2)

    def loss_of(x: Any) -> Any:
        mean, log_variance = model(x)
        noise = tf.random.stateless_normal(tf.shape(mean), seed=[1, 2])
        z = mean + tf.exp(0.5 * log_variance) * noise
        distance = tf.square(z[:, None] - mean[None]) * tf.exp(-log_variance[None])
        log_q = -0.5 * (distance + log_variance[None])
        joint = tf.reduce_logsumexp(tf.reduce_sum(log_q, axis=2), axis=1)
        product = tf.reduce_sum(tf.reduce_logsumexp(log_q, axis=1), axis=1)
        return tf.reduce_mean(tf.square(x - model.decoder(z))) + 0.1 * tf.reduce_mean(
            joint - product
        )

    return learn(loss_of, model, of_shape(8))


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
