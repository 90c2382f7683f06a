"""Steps that pass over the batch several times, or differentiate twice."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .case import BuiltStep, case, mlp, normal, sgd, state, to_classify, to_regress


def squared(model: Any, x: Any, y: Any) -> Any:
    """Return the mean square of the errors."""
    return tf.reduce_mean(tf.square(y - model(x, training=True)))


@case("passes/inner_and_outer_batch")
def meta() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2]))
    rate = tf.Variable(0.1)
    optimizer = sgd([w, rate], 0.05)

    def step(x: Any, y: Any) -> Any:
        half = tf.shape(x)[0] // 2 + 1
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                first = tf.reduce_mean(tf.square(y[:half] - tf.tanh(x[:half] @ w)))
            fast = w - rate * inner.gradient(first, w)
            loss = tf.reduce_mean(tf.square(y[half - 1 :] - tf.tanh(x[half - 1 :] @ fast)))
        optimizer.apply(outer.gradient(loss, [w, rate]), [w, rate])
        return loss

    return BuiltStep(
        step=step, batch=to_regress(), variables=[w, rate, *optimizer.variables], same_bits=False
    )


@case("passes/one_adaptation_for_each_task")
def tasks() -> BuiltStep:
    w = tf.Variable(0.3 * tf.random.stateless_normal([4, 2], seed=[1, 2]))
    optimizer = sgd([w])

    def step(support: Any, wanted: Any, query: Any, answers: Any) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                copies = tf.repeat(w[None], tf.shape(support)[0], axis=0)
                inner.watch(copies)
                each = tf.reduce_mean((wanted - tf.matmul(support, copies)) ** 2, axis=[1, 2])
            fast = copies - 0.2 * inner.gradient(each, copies)
            loss = tf.reduce_mean((answers - tf.matmul(query, fast)) ** 2)
        optimizer.apply([outer.gradient(loss, w)], [w])
        return loss

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return (
            normal(rng, n, 5, 4),
            normal(rng, n, 5, 2),
            normal(rng, n, 6, 4),
            normal(rng, n, 6, 2),
        )

    return BuiltStep(step=step, batch=batch, variables=[w, *optimizer.variables], same_bits=False)


@case("passes/lookahead_and_averaged_weights")
def lookahead() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights)
    slow = [tf.Variable(v.value, trainable=False) for v in weights]
    mean = [tf.Variable(v.value, trainable=False) for v in weights]
    count = tf.Variable(0.0)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        optimizer.apply(tape.gradient(loss, weights), weights)
        count.assign_add(1.0)
        sync = tf.cast(tf.equal(count % 3, 0), tf.float32)
        for v, s, m in zip(weights, slow, mean, strict=True):
            s.assign_add(sync * 0.5 * (v - s))
            v.assign(sync * s + (1 - sync) * v)
            m.assign_add((v - m) / count)
        return loss

    return BuiltStep(
        step=step, batch=to_regress(), variables=[*state(model, optimizer), *slow, *mean, count]
    )


@case("passes/hessian_times_vector_and_curvature")
def curvature() -> BuiltStep:
    model = mlp(6, 8, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = squared(model, x, y)
            gradients = inner.gradient(loss, weights)
        directions = [tf.stop_gradient(g) for g in gradients]
        products = outer.gradient(gradients, weights, output_gradients=directions)
        top = tf.add_n([tf.reduce_sum(p * d) for p, d in zip(products, directions, strict=True)])
        bottom = tf.add_n([tf.reduce_sum(d * d) for d in directions])
        rate = 0.1 / (1.0 + tf.abs(top / bottom))
        optimizer.apply([rate * 10.0 * g for g in gradients], weights)
        return {"loss": loss, "curvature": top / bottom}

    return BuiltStep(
        step=step, batch=to_regress(), variables=state(model, optimizer), same_bits=False
    )


@case("passes/least_squares_step")
def least_squares() -> BuiltStep:
    w = tf.Variable(0.3 * tf.random.stateless_normal([6, 1], seed=[1, 2]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = tf.tanh(x @ w)[:, 0]
        table = tape.jacobian(outputs, w)[:, :, 0]
        normal_matrix = tf.matmul(table, table, transpose_a=True) + 0.5 * tf.eye(6)
        right = tf.linalg.matvec(table, y[:, 0] - outputs, transpose_a=True)
        change = tf.linalg.solve(normal_matrix, right[:, None])
        w.assign_add(0.5 * change)
        return tf.reduce_mean(tf.square(y[:, 0] - outputs))

    return BuiltStep(step=step, batch=to_regress(outputs=1), variables=[w])


@case("passes/finite_differences")
def evolution() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2]))
    generation = tf.Variable(0, trainable=False)

    def step(x: Any, y: Any) -> Any:
        change = tf.zeros_like(w)
        for i in range(4):
            noise = tf.random.stateless_normal([6, 4], seed=tf.stack([generation, i]))
            up = tf.reduce_mean(tf.square(y - tf.tanh(x @ (w + 0.3 * noise))))
            down = tf.reduce_mean(tf.square(y - tf.tanh(x @ (w - 0.3 * noise))))
            change += noise * (up - down) / 0.6
        w.assign_sub(0.1 * change / 4)
        generation.assign_add(1)
        return tf.reduce_mean(tf.square(y - tf.tanh(x @ w)))

    return BuiltStep(step=step, batch=to_regress(), variables=[w, generation])


@case("passes/adversarial_inputs")
def adversarial() -> BuiltStep:
    model = mlp(6, 12, 5)
    weights = model.trainable_variables
    optimizer = sgd(weights)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x: Any, y: Any) -> Any:
        moved = x
        for _ in range(2):
            with tf.GradientTape() as tape:
                tape.watch(moved)
                loss = entropy(y, model(moved, training=False))
            slope = tape.gradient(loss, moved)
            size = tf.sqrt(tf.reduce_sum(slope**2, axis=1, keepdims=True) + 1e-8)
            moved = tf.stop_gradient(moved + 0.1 * slope / size)
        with tf.GradientTape() as tape:
            loss = 0.5 * entropy(y, model(x)) + 0.5 * entropy(y, model(moved))
        optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss, "moved": moved}

    return BuiltStep(step=step, batch=to_classify(), variables=state(model, optimizer))
