"""Functions in functions, gradients of one's own, and code that is not TensorFlow's."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .case import BuiltStep, case, learn, mlp, normal, sgd, state, to_regress


@case("functions/forward_pass_recomputed")
def recomputed() -> BuiltStep:
    model = mlp(6, 10, 8)
    head = mlp(8, 4)
    weights = [*model.trainable_variables, *head.trainable_variables]
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.recompute_grad(lambda inputs: tf.tanh(model(inputs)))(x)
            loss = tf.reduce_mean((y - head(hidden)) ** 2)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=[*weights, *optimizer.variables])


@case("functions/gradient_of_its_own")
def custom_gradient() -> BuiltStep:
    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return tf.clip_by_norm(upstream, 0.2) + 0.01 * tf.reduce_mean(upstream, axis=0)

        return tf.identity(x), gradient

    @tf.custom_gradient
    def rounded(x: Any) -> Any:
        return tf.round(4.0 * x) / 4.0, lambda upstream: upstream

    model = mlp(6, 10, 4)

    def loss_of(x: Any, y: Any) -> Any:
        return tf.reduce_mean((y - clipped(model(rounded(x)))) ** 2)

    return learn(loss_of, model, to_regress())


@case("functions/functions_in_functions")
def nested() -> BuiltStep:
    model = mlp(6, 10, 4)
    optimizer = sgd(model.trainable_variables)

    @tf.function
    def forward(x: Any, y: Any) -> Any:
        return 0.5 * tf.reduce_mean((y - model(x)) ** 2)

    @tf.function(reduce_retracing=True)
    def update(gradients: Any) -> None:
        optimizer.apply(gradients, model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = forward(x, y)
        update(tape.gradient(loss, model.trainable_variables))
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=state(model, optimizer))


@case("functions/compiled_function")
def compiled() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2]))

    @tf.function(jit_compile=True)
    def forward(x: Any, y: Any, weight: Any) -> Any:
        error = y - tf.tanh(x @ weight)
        return tf.sqrt(tf.reduce_mean(error**2)), error

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, error = forward(x, y, w)
        w.assign_sub(0.2 * tape.gradient(loss, w))
        return loss, error

    return BuiltStep(step=step, batch=to_regress(), variables=[w])


@case("functions/python_function_over_the_batch")
def python_function() -> BuiltStep:
    model = mlp(6, 10, 4)

    def ranks(values: np.ndarray) -> np.ndarray:
        return np.argsort(np.argsort(values, axis=0), axis=0).astype("float32") / len(values)

    def loss_of(x: Any, y: Any) -> Any:
        wanted = tf.numpy_function(ranks, [y], tf.float32)
        wanted.set_shape(y.shape)
        return tf.reduce_mean((wanted - model(x)) ** 2)

    return learn(loss_of, model, to_regress())


@case("functions/checked_and_printed")
def checked() -> BuiltStep:
    model = mlp(6, 10, 4)
    count = tf.Variable(0, trainable=False)

    def loss_of(x: Any, y: Any) -> Any:
        tf.debugging.assert_equal(tf.shape(x)[0], tf.shape(y)[0])
        outputs = tf.ensure_shape(tf.debugging.check_numerics(model(x), "outputs"), [None, 4])
        loss = tf.reduce_mean((y - outputs) ** 2)
        count.assign_add(1)
        if count % 100 == 0:
            tf.print("step", count, "loss", loss)
        tf.debugging.assert_non_negative(loss)
        return loss

    return learn(loss_of, model, to_regress(), extra=[count])


@case("functions/samples_refined_by_noisy_descent")
def langevin() -> BuiltStep:
    energy = mlp(6, 10, 1)
    optimizer = sgd(energy.trainable_variables)
    seeds = keras.random.SeedGenerator(4)

    def step(x: Any, start: Any) -> Any:
        made = start
        for _ in range(3):
            with tf.GradientTape() as tape:
                tape.watch(made)
                total = tf.reduce_sum(energy(made))
            noise = keras.random.normal(tf.shape(made), seed=seeds)
            made = made - 0.1 * tape.gradient(total, made) + 0.02 * noise
        with tf.GradientTape() as tape:
            real, false = energy(x), energy(tf.stop_gradient(made))
            loss = tf.reduce_mean(real) - tf.reduce_mean(false)
            loss += 0.1 * tf.reduce_mean(real**2 + false**2)
        optimizer.apply(tape.gradient(loss, energy.trainable_variables))
        return loss, made

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (normal(rng, n, 6), normal(rng, n, 6)),
        variables=[*state(energy, optimizer), seeds.state],
    )
