"""Layers of one's own: state assigned in call, statistics of the batch, added losses."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from .case import BuiltStep, case, learn, mlp, sgd, to_classify, to_regress

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def around(layer: Any, **settings: Any) -> BuiltStep:
    """Return a step that trains a classifier with a layer in its middle, and its losses."""
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="tanh"), layer, layers.Dense(5)]
    )

    def loss_of(x: Any, y: Any) -> Any:
        logits = model(x, training=True)
        return ENTROPY(y, logits) + sum(model.losses)

    return learn(loss_of, model, to_classify(), **settings)


@case("layers/trainable_weight_assigned_in_call")
def assigned() -> BuiltStep:
    class UnitRows(layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], 6), initializer="random_normal")

        def call(self, x: Any) -> Any:
            self.kernel.assign(tf.math.l2_normalize(self.kernel, axis=0))
            return x @ self.kernel

    return around(UnitRows())


@case("layers/spectral_normalisation")
def spectral() -> BuiltStep:
    return around(layers.SpectralNormalization(layers.Dense(6, activation="tanh")))


@case("layers/running_mean_assigned_in_call")
def running_mean() -> BuiltStep:
    class Centred(layers.Layer):
        def build(self, shape: Any) -> None:
            self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)
            self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
                self.seen.assign_add(ops.cast(ops.shape(x)[0], "float32"))
            return x - self.mean

    return around(Centred())


@case("layers/scaled_by_the_largest_of_the_batch")
def scaled() -> BuiltStep:
    class Scaled(layers.Layer):
        def call(self, x: Any) -> Any:
            return x / (ops.max(ops.abs(x)) + 0.1)

    return around(Scaled())


@case("layers/centred_over_the_batch_with_keras_ops")
def centred() -> BuiltStep:
    def centre(x: Any) -> Any:
        mean, variance = ops.moments(x, axes=[0], keepdims=True)
        return (x - mean) * ops.rsqrt(variance + 1e-2)

    return around(layers.Lambda(centre))


@case("layers/whitened_over_the_batch")
def whitened() -> BuiltStep:
    class Whitened(layers.Layer):
        def call(self, x: Any) -> Any:
            x = x - tf.reduce_mean(x, axis=0)
            size = tf.cast(tf.shape(x)[0], tf.float32)
            covariance = tf.matmul(x, x, transpose_a=True) / size + 0.5 * tf.eye(8)
            root = tf.linalg.cholesky(covariance)
            return tf.transpose(tf.linalg.triangular_solve(root, tf.transpose(x)))

    return around(Whitened(), tolerance=1e-4)


@case("layers/batch_renormalised")
def renormalised() -> BuiltStep:
    class Renormalised(layers.Layer):
        def build(self, shape: Any) -> None:
            width = shape[-1]
            self.scale = self.add_weight(shape=(width,), initializer="ones")
            self.mean = self.add_weight(shape=(width,), initializer="zeros", trainable=False)
            self.deviation = self.add_weight(shape=(width,), initializer="ones", trainable=False)

        def call(self, x: Any) -> Any:
            mean, variance = tf.nn.moments(x, axes=[0])
            deviation = tf.sqrt(variance + 1e-2)
            r = tf.stop_gradient(tf.clip_by_value(deviation / self.deviation, 0.4, 2.5))
            d = tf.stop_gradient(tf.clip_by_value((mean - self.mean) / self.deviation, -2.0, 2.0))
            self.mean.assign_add(0.2 * (mean - self.mean))
            self.deviation.assign_add(0.2 * (deviation - self.deviation))
            return self.scale * ((x - mean) / deviation * r + d)

    return around(Renormalised())


@case("layers/added_loss_of_the_batch")
def added_loss() -> BuiltStep:
    class Sparse(layers.Layer):
        def call(self, x: Any) -> Any:
            share = ops.clip(ops.mean(ops.sigmoid(x), axis=0), 1e-3, 1 - 1e-3)
            divergence = 0.1 * ops.log(0.1 / share) + 0.9 * ops.log(0.9 / (1 - share))
            self.add_loss(0.1 * ops.sum(divergence))
            return x

    return around(Sparse())


@case("layers/metric_updated_in_call")
def metric_in_call() -> BuiltStep:
    class Watched(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.size = keras.metrics.Mean(name="size")

        def call(self, x: Any) -> Any:
            self.size.update_state(tf.norm(x, axis=-1))
            return x

    watched = Watched()
    return around(watched, extra=[watched.size])


@case("layers/reduced_by_a_replica_context")
def replica_context() -> BuiltStep:
    class Synchronised(layers.Layer):
        def build(self, shape: Any) -> None:
            self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

        def call(self, x: Any) -> Any:
            mean = tf.reduce_mean(x, axis=0)
            context = tf.distribute.get_replica_context()
            if context is not None:
                mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, mean)
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
            return x - mean

    return around(Synchronised())


@case("layers/scale_set_from_the_first_batch")
def set_at_first() -> BuiltStep:
    class ActNorm(layers.Layer):
        def build(self, shape: Any) -> None:
            self.shift = self.add_weight(shape=(shape[-1],), initializer="zeros")
            self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
            self.ready = self.add_weight(
                shape=(), initializer="zeros", dtype="int32", trainable=False
            )

        def call(self, x: Any) -> Any:
            def first() -> tuple[Any, Any]:
                mean, variance = tf.nn.moments(x, axes=[0])
                return -mean, 1.0 / tf.sqrt(variance + 1e-2)

            def later() -> tuple[Any, Any]:
                return tf.identity(self.shift.value), tf.identity(self.scale.value)

            shift, scale = tf.cond(tf.equal(self.ready.value, 0), first, later)
            self.shift.assign(shift)
            self.scale.assign(scale)
            self.ready.assign(1)
            return (x + self.shift) * self.scale

    return around(ActNorm())


@case("layers/routed_capsules")
def capsules() -> BuiltStep:
    class Capsules(layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(4, 2, 5, 3), initializer="glorot_uniform")

        def call(self, x: Any) -> Any:
            votes = tf.einsum("bif,ifjd->bijd", tf.reshape(x, [-1, 4, 2]), self.kernel)
            logits = tf.zeros(tf.shape(votes)[:3])
            for _ in range(3):
                mixed = tf.reduce_sum(tf.nn.softmax(logits, axis=2)[..., None] * votes, axis=1)
                squares = tf.reduce_sum(mixed**2, axis=-1, keepdims=True)
                poses = squares / (1 + squares) * mixed / tf.sqrt(squares + 1e-4)
                logits += tf.reduce_sum(votes * poses[:, None], axis=-1)
            return tf.reshape(poses, [-1, 15])

    return around(Capsules())


@case("layers/gradient_reversed_for_a_domain")
def reversed_gradient() -> BuiltStep:
    @tf.custom_gradient
    def reverse(x: Any) -> Any:
        return tf.identity(x), lambda upstream: -0.3 * upstream

    body, head, domain = mlp(6, 10, 6), mlp(6, 5), mlp(6, 6, 1)
    weights = [v for part in (body, head, domain) for v in part.trainable_variables]
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        half = tf.shape(x)[0] // 2 + 1
        with tf.GradientTape() as tape:
            hidden = tf.tanh(body(x))
            of_class = ENTROPY(y[:half], head(hidden[:half]))
            place = tf.cast(tf.range(tf.shape(x)[0]) < half, tf.float32)[:, None]
            logits = domain(reverse(hidden))
            of_domain = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=place, logits=logits)
            )
            loss = of_class + of_domain
        optimizer.apply(tape.gradient(loss, weights), weights)
        return of_class, of_domain

    return BuiltStep(step=step, batch=to_classify(), variables=[*weights, *optimizer.variables])


@case("layers/multi_task_with_learned_uncertainty")
def uncertainty() -> BuiltStep:
    body, heads = mlp(6, 10, 8), [mlp(8, 1) for _ in range(3)]
    logs = [keras.Variable(0.0, name=f"log_{i}") for i in range(3)]
    weights = [v for part in (body, *heads) for v in part.trainable_variables] + logs
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.nn.gelu(body(x))
            loss, each = 0.0, {}
            for i, (head, log) in enumerate(zip(heads, logs, strict=True)):
                part = tf.reduce_mean(tf.square(y[:, i] - head(hidden)[:, 0]))
                each[f"task_{i}"] = part
                loss += 0.5 * tf.exp(-log) * part + 0.5 * log
        optimizer.apply(tape.gradient(loss, weights), weights)
        return each

    return BuiltStep(
        step=step, batch=to_regress(outputs=3), variables=[*weights, *optimizer.variables]
    )


@case("layers/module_of_tensorflow_alone")
def module() -> BuiltStep:
    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.random.stateless_normal([6, 8], [1, 2]), name="w")
            self.v = tf.Variable(tf.random.stateless_normal([8, 4], [3, 4]), name="v")

        @tf.Module.with_name_scope
        def __call__(self, x: Any) -> Any:
            return tf.tanh(x @ self.w) @ self.v

    net = Net()

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = 0.5 * tf.reduce_mean((y - net(x)) ** 2)
        for v, g in zip(
            net.trainable_variables, tape.gradient(loss, net.trainable_variables), strict=True
        ):
            v.assign_sub(0.05 * g)
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=net.variables)
