"""Losses that compare every sample of the batch with every other one."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .case import Batch, BuiltStep, adam, case, integers, learn, mlp, normal, sgd, state


def two_views(features: int = 8) -> Batch:
    """Return what makes two views of the same samples."""

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        x = normal(rng, n, features)
        return x + 0.3 * normal(rng, n, features), x + 0.3 * normal(rng, n, features)

    return batch


def labelled(rng: Any, n: int) -> tuple[Any, ...]:
    """Return samples with labels out of four."""
    return normal(rng, n, 8), integers(rng, 4, n)


@case("contrastive/simclr")
def simclr() -> BuiltStep:
    model = mlp(8, 12, 6)

    def loss_of(first: Any, second: Any) -> Any:
        a = tf.math.l2_normalize(model(first), axis=1)
        b = tf.math.l2_normalize(model(second), axis=1)
        similarities = tf.matmul(a, b, transpose_b=True) / 0.5
        labels = tf.range(tf.shape(a)[0])
        there = keras.losses.sparse_categorical_crossentropy(labels, similarities, from_logits=True)
        back = keras.losses.sparse_categorical_crossentropy(
            labels, tf.transpose(similarities), from_logits=True
        )
        return tf.reduce_mean(there + back) / 2

    return learn(loss_of, model, two_views())


@case("contrastive/nt_xent_of_concatenated_views")
def nt_xent() -> BuiltStep:
    model = mlp(8, 12, 6)

    def loss_of(first: Any, second: Any) -> Any:
        size = tf.shape(first)[0]
        z = tf.math.l2_normalize(model(tf.concat([first, second], axis=0)), axis=1)
        similarities = tf.matmul(z, z, transpose_b=True) / 0.5 - 1e9 * tf.eye(2 * size)
        partner = tf.concat([tf.range(size) + size, tf.range(size)], axis=0)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=partner, logits=similarities)
        )

    return learn(loss_of, model, two_views())


@case("contrastive/simclr_with_accuracy_and_probe")
def simclr_with_probe() -> BuiltStep:
    model, probe = mlp(8, 12, 6), mlp(6, 4)
    of_model, of_probe = adam(model.trainable_weights), adam(probe.trainable_weights)
    found = keras.metrics.SparseCategoricalAccuracy()
    right = keras.metrics.SparseCategoricalAccuracy()

    def step(first: Any, second: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            a, b = model(first), model(second)
            a, b = tf.math.l2_normalize(a, axis=1), tf.math.l2_normalize(b, axis=1)
            logits = tf.matmul(a, b, transpose_b=True) / 0.3
            labels = tf.range(tf.shape(first)[0])
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        of_model.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
        found.update_state(labels, logits)
        with tf.GradientTape() as tape:
            guess = probe(model(first, training=False))
            probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, guess)
        of_probe.apply(tape.gradient(probe_loss, probe.trainable_weights), probe.trainable_weights)
        right.update_state(y, guess)
        return {"loss": loss, "found": found.result(), "right": right.result()}

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return *two_views()(rng, n), integers(rng, 4, n)

    return BuiltStep(
        step=step, batch=batch, variables=state(model, probe, of_model, of_probe, found, right)
    )


@case("contrastive/supervised")
def supervised() -> BuiltStep:
    model = mlp(8, 12, 6)

    def loss_of(x: Any, y: Any) -> Any:
        z = tf.math.l2_normalize(model(x), axis=1)
        logits = tf.matmul(z, z, transpose_b=True) / 0.5
        logits -= tf.stop_gradient(tf.reduce_max(logits, axis=1, keepdims=True))
        others = 1.0 - tf.eye(tf.shape(x)[0])
        same = tf.cast(y[:, None] == y[None], tf.float32) * others
        log_of_sum = tf.math.log(tf.reduce_sum(tf.exp(logits) * others, axis=1, keepdims=True))
        each = tf.reduce_sum(same * (logits - log_of_sum), axis=1)
        return -tf.reduce_mean(tf.math.divide_no_nan(each, tf.reduce_sum(same, axis=1)))

    return learn(loss_of, model, labelled)


@case("contrastive/barlow_twins")
def barlow_twins() -> BuiltStep:
    model = mlp(8, 12, 5, last_bias=False)

    def standardised(z: Any) -> Any:
        return (z - tf.reduce_mean(z, axis=0)) / (tf.math.reduce_std(z, axis=0) + 0.01)

    def loss_of(first: Any, second: Any) -> Any:
        size = tf.cast(tf.shape(first)[0], tf.float32)
        a, b = standardised(model(first)), standardised(model(second))
        cross = tf.matmul(a, b, transpose_a=True) / size
        diagonal = tf.linalg.diag_part(cross)
        off = cross - tf.linalg.diag(diagonal)
        return 0.1 * (tf.reduce_sum((1 - diagonal) ** 2) + 0.05 * tf.reduce_sum(off**2))

    return learn(loss_of, model, two_views())


@case("contrastive/vicreg")
def vicreg() -> BuiltStep:
    model = mlp(8, 12, 5, last_bias=False)

    def spread(z: Any) -> Any:
        deviation = tf.sqrt(tf.math.reduce_variance(z, axis=0) + 1e-2)
        centred = z - tf.reduce_mean(z, axis=0)
        covariance = tf.matmul(centred, centred, transpose_a=True)
        covariance /= tf.cast(tf.shape(z)[0] - 1, tf.float32)
        off = tf.linalg.set_diag(covariance, tf.zeros([5]))
        return tf.reduce_mean(tf.nn.softplus(1 - deviation)) + tf.reduce_sum(off**2) / 5

    def loss_of(first: Any, second: Any) -> Any:
        a, b = model(first), model(second)
        return tf.reduce_mean((a - b) ** 2) + 0.5 * (spread(a) + spread(b))

    return learn(loss_of, model, two_views())


@case("contrastive/clip_with_learned_temperature")
def clip() -> BuiltStep:
    image, text = mlp(8, 10, 6), mlp(5, 10, 6)
    scale = tf.Variable(1.0, name="log_scale")
    weights = [*image.trainable_variables, *text.trainable_variables, scale]
    optimizer = adam(weights)

    def step(pixels: Any, words: Any) -> Any:
        with tf.GradientTape() as tape:
            a = tf.math.l2_normalize(image(pixels), axis=-1)
            b = tf.math.l2_normalize(text(words), axis=-1)
            logits = tf.exp(scale) * tf.matmul(a, b, transpose_b=True)
            labels = tf.range(tf.shape(logits)[0])
            per_image = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            per_text = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.transpose(logits))
            loss = (tf.reduce_mean(per_image) + tf.reduce_mean(per_text)) / 2
        optimizer.apply(tape.gradient(loss, weights), weights)
        scale.assign(tf.minimum(scale, 2.0))
        return {"loss": loss, "logits": logits}

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 8), normal(rng, n, 5)

    return BuiltStep(step=step, batch=batch, variables=[*weights, *optimizer.variables])


@case("contrastive/sigmoid_of_pairs")
def siglip() -> BuiltStep:
    model = mlp(8, 12, 6)
    bias = keras.Variable(-1.0)

    def loss_of(first: Any, second: Any) -> Any:
        a, b = tf.math.l2_normalize(model(first), 1), tf.math.l2_normalize(model(second), 1)
        logits = 4.0 * tf.einsum("if,jf->ij", a, b) + bias
        size = tf.shape(first)[0]
        signs = 2 * tf.eye(size) - 1
        return -tf.reduce_sum(tf.math.log_sigmoid(signs * logits)) / tf.cast(size, tf.float32)

    return learn(loss_of, model, two_views(), extra=[bias])


@case("contrastive/triplet_of_all_pairs")
def triplet() -> BuiltStep:
    model = mlp(8, 12, 6, last_bias=False)

    def loss_of(x: Any, y: Any) -> Any:
        z = model(x)
        squares = tf.reduce_sum(z**2, axis=1)
        far = squares[:, None] - 2 * tf.matmul(z, z, transpose_b=True) + squares[None]
        same = tf.cast(y[:, None] == y[None], tf.float32)
        hardest_same = tf.reduce_max(far * same, axis=1)
        hardest_other = tf.reduce_min(far + 1e6 * same, axis=1)
        hardest_other = tf.where(hardest_other > 1e5, 0.0, hardest_other)
        return tf.reduce_mean(tf.nn.softplus(hardest_same - hardest_other + 0.2))

    return learn(loss_of, model, labelled)


@case("contrastive/triplet_of_every_triple")
def every_triple() -> BuiltStep:
    model = mlp(8, 12, 6)

    def loss_of(x: Any, y: Any) -> Any:
        z = tf.math.l2_normalize(model(x), axis=1)
        far = 2.0 - 2.0 * tf.matmul(z, z, transpose_b=True)
        each = tf.nn.softplus(far[:, :, None] - far[:, None, :] + 0.5)
        same = tf.cast(y[:, None] == y[None], tf.float32)
        valid = (same - tf.eye(tf.shape(x)[0]))[:, :, None] * (1 - same)[:, None, :]
        return tf.reduce_sum(each * valid) / (tf.reduce_sum(valid) + 1e-6)

    return learn(loss_of, model, labelled)


# Plain TensorFlow 2.21 gave seven values in 80 runs on a busy machine; without this optimizer, one.
@case("contrastive/other_samples_as_negatives_by_roll", dependency_optimization=False)
def rolled() -> BuiltStep:
    model, judge = mlp(8, 10, 4), mlp(8, 10, 1, last_bias=False)
    weights = [*model.trainable_variables, *judge.trainable_variables]
    optimizer = sgd(weights, 0.02)

    def step(first: Any, second: Any) -> Any:
        with tf.GradientTape() as tape:
            a, b = model(first), model(second)
            joint = judge(tf.concat([a, b], axis=1))
            marginal = judge(tf.concat([a, tf.roll(b, shift=1, axis=0)], axis=1))
            size = tf.cast(tf.shape(first)[0], tf.float32)
            log_mean = tf.reduce_logsumexp(marginal) - tf.math.log(size)
            loss = -(tf.reduce_mean(joint) - log_mean)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return {"mutual_information": -loss}

    return BuiltStep(
        step=step, batch=two_views(), variables=[*weights, *optimizer.variables], tolerance=1e-4
    )


@case("contrastive/byol")
def byol() -> BuiltStep:
    online, target, predictor = mlp(8, 12, 6), mlp(8, 12, 6), mlp(6, 8, 6)
    target.set_weights(online.get_weights())
    weights = [*online.trainable_variables, *predictor.trainable_variables]
    optimizer = sgd(weights, momentum=0.9)

    def distance(p: Any, z: Any) -> Any:
        p, z = tf.math.l2_normalize(p, axis=1), tf.math.l2_normalize(z, axis=1)
        return 2 - 2 * tf.reduce_mean(tf.reduce_sum(p * tf.stop_gradient(z), axis=1))

    def step(first: Any, second: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = distance(predictor(online(first)), target(second))
            loss += distance(predictor(online(second)), target(first))
        optimizer.apply(tape.gradient(loss, weights), weights)
        for mean, weight in zip(target.weights, online.weights, strict=True):
            mean.assign(0.95 * mean + 0.05 * weight)
        return loss

    return BuiltStep(
        step=step, batch=two_views(), variables=state(online, target, predictor, optimizer)
    )
