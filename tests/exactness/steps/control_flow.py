"""Branches, loops, maps, functions in functions, and gradients of one's own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .case import (
    BuiltStep,
    adam,
    case,
    integers,
    learn,
    mlp,
    normal,
    of_shape,
    sgd,
    state,
    to_regress,
)


def squared(model: Any, x: Any, y: Any) -> Any:
    """Return the mean square of the errors."""
    return tf.reduce_mean(tf.square(y - model(x, training=True)))


@case("control_flow/step_skipped_unless_finite")
def skipped() -> BuiltStep:
    model = mlp(6, 10, 4)
    optimizer = sgd(model.trainable_variables)
    skips = tf.Variable(0, trainable=False)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)

        def apply() -> Any:
            optimizer.apply(gradients, model.trainable_variables)
            return tf.constant(True)

        def skip() -> Any:
            skips.assign_add(1)
            return tf.constant(False)

        good = tf.math.is_finite(loss) & (loss < 1.4)
        return tf.where(good, loss, 0.0), tf.cond(good, apply, skip)

    return BuiltStep(step=step, batch=to_regress(), variables=[*state(model, optimizer), skips])


@case("control_flow/branch_on_a_statistic_of_the_batch")
def statistic() -> BuiltStep:
    model = mlp(6, 10, 4)

    def loss_of(x: Any, y: Any) -> Any:
        error = y - model(x)
        if tf.reduce_mean(y) > 0.0:
            loss = tf.reduce_mean(tf.square(error))
        elif tf.shape(x)[0] > 10:
            loss = 0.5 * tf.reduce_mean(tf.square(error)) + 0.1 * tf.reduce_mean(tf.abs(error))
        else:
            loss = tf.sqrt(tf.reduce_mean(tf.square(error)))
        return loss

    return learn(loss_of, model, to_regress())


@case("control_flow/alternating_networks")
def alternating() -> BuiltStep:
    first, second = mlp(6, 8, 4), mlp(6, 8, 4)
    of_first, of_second = sgd(first.trainable_variables), adam(second.trainable_variables)
    count = tf.Variable(0, trainable=False)

    def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    def step(x: Any, y: Any) -> Any:
        loss = tf.switch_case(
            count % 3,
            [lambda: train(first, of_first, x, y), lambda: train(second, of_second, x, y)],
            default=lambda: squared(first, x, y) - squared(second, x, y),
        )
        count.assign_add(1)
        return loss

    return BuiltStep(
        step=step, batch=to_regress(), variables=[*state(first, second, of_first, of_second), count]
    )


@case("control_flow/cases_by_size_of_the_loss")
def cases() -> BuiltStep:
    model = mlp(6, 10, 4)

    def loss_of(x: Any, y: Any) -> Any:
        error = y - model(x)
        mean = tf.reduce_mean(tf.square(error))
        return tf.case(
            [(mean > 2.0, lambda: tf.sqrt(mean)), (mean > 0.9, lambda: 0.5 * mean)],
            default=lambda: mean * 1.1,
        )

    return learn(loss_of, model, to_regress())


@case("control_flow/map_over_samples")
def mapped() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2]))

    def step(x: Any, y: Any) -> Any:
        def row_loss(sample: Any) -> Any:
            features, target = sample
            guess = tf.tanh(tf.linalg.matvec(w, features, transpose_a=True))
            return tf.reduce_logsumexp((target - guess) ** 2)

        with tf.GradientTape() as tape:
            each = tf.map_fn(row_loss, (x, y), fn_output_signature=tf.float32)
            loss = tf.reduce_mean(each)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss, each

    return BuiltStep(step=step, batch=to_regress(), variables=[w])


@case("control_flow/vectorised_map_over_samples")
def vectorised() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([4, 4], seed=[1, 2]))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            grams = tf.vectorized_map(lambda m: tf.matmul(m @ w, m @ w, transpose_a=True), x)
            loss = tf.reduce_mean(tf.linalg.logdet(grams + 2.0 * tf.eye(4)))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return BuiltStep(step=step, batch=of_shape(5, 4), variables=[w])


@case("control_flow/scan_over_the_batch")
def scanned() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.scan(lambda past, now: 0.7 * past + 0.3 * now, tf.tanh(x @ w))
            loss = tf.reduce_mean((y - rows) ** 2)
        w.assign_sub(0.2 * tape.gradient(loss, w))
        return loss, rows

    return BuiltStep(step=step, batch=to_regress(), variables=[w])


@case("control_flow/one_update_for_each_sample")
def online() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2]))

    def step(x: Any, y: Any) -> Any:
        total = 0.0
        for i in tf.range(tf.shape(x)[0]):
            error = tf.linalg.matvec(w, x[i], transpose_a=True) - y[i]
            w.assign_sub(0.02 * x[i][:, None] * error[None])
            total += tf.reduce_sum(error**2)
        return total

    return BuiltStep(step=step, batch=to_regress(), variables=[w], sizes=(12, 12, 9, 12, 3))


@case("control_flow/loop_until_the_batch_agrees")
def fixed_point() -> BuiltStep:
    w = tf.Variable(0.2 * tf.random.stateless_normal([4, 4], seed=[1, 2]))
    u = tf.Variable(0.5 * tf.random.stateless_normal([6, 4], seed=[3, 4]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            z, change, rounds = tf.zeros_like(y), tf.constant(1.0), tf.constant(0)
            while change > 0.02 and rounds < 20:
                new = tf.tanh(z @ w + x @ u)
                change = tf.reduce_max(tf.abs(new - z))
                z = new
                rounds += 1
            loss = tf.reduce_mean((y - z) ** 2)
        of_w, of_u = tape.gradient(loss, [w, u])
        w.assign_sub(0.1 * of_w)
        u.assign_sub(0.1 * of_u)
        return loss, rounds

    return BuiltStep(step=step, batch=to_regress(), variables=[w, u])


@case("control_flow/loop_with_break")
def with_break() -> BuiltStep:
    model = mlp(6, 8, 4)
    optimizer = sgd(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        done = 0
        for _ in tf.range(4):
            with tf.GradientTape() as tape:
                loss = squared(model, x, y)
            if loss < 0.8:
                break
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            done += 1
        return done

    return BuiltStep(step=step, batch=to_regress(), variables=state(model, optimizer))


@case("control_flow/lengths_of_each_sample")
def lengths() -> BuiltStep:
    w = tf.Variable(0.4 * tf.random.stateless_normal([4, 4], seed=[1, 2]))

    def step(x: Any, length: Any) -> Any:
        with tf.GradientTape() as tape:
            state_now = tf.zeros([tf.shape(x)[0], 4])
            for time in tf.range(tf.reduce_max(length)):
                tf.autograph.experimental.set_loop_options(
                    shape_invariants=[(state_now, tf.TensorShape([None, 4]))]
                )
                new = tf.tanh(x[:, time] + state_now @ w)
                state_now = tf.where((time < length)[:, None], new, state_now)
            loss = tf.reduce_mean((state_now - x[:, 0]) ** 2)
        w.assign_sub(0.2 * tape.gradient(loss, w))
        return loss

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6, 4), 1 + integers(rng, 6, n)

    return BuiltStep(step=step, batch=batch, variables=[w])
