"""Steps that do more with gradients than apply them once."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .case import BuiltStep, adam, case, mlp, sgd, state, to_classify, to_regress


def squared(model: Any, x: Any, y: Any) -> Any:
    """Return the mean square of the errors."""
    return tf.reduce_mean(tf.square(y - model(x, training=True)))


@case("gradients/sharpness_aware")
def sharpness_aware() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        gradients = tape.gradient(loss, weights)
        scale = 0.05 / (tf.linalg.global_norm(gradients) + 1e-6)
        shifts = [g * scale for g in gradients]
        for weight, shift in zip(weights, shifts, strict=True):
            weight.assign_add(shift)
        with tf.GradientTape() as tape:
            shifted_loss = squared(model, x, y)
        gradients = tape.gradient(shifted_loss, weights)
        for weight, shift in zip(weights, shifts, strict=True):
            weight.assign_sub(shift)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss, "shifted_loss": shifted_loss}

    return BuiltStep(step=step, batch=to_regress(), variables=state(model, optimizer))


@case("gradients/conflicting_tasks_projected")
def projected() -> BuiltStep:
    model = mlp(6, 12, 2)
    weights = model.trainable_variables
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            outputs = model(x)
            first = tf.reduce_mean(tf.square(y[:, 0] - outputs[:, 0]))
            second = 0.5 * tf.reduce_mean(tf.square(y[:, 1] + outputs[:, 0] - outputs[:, 1]))
        of_first, of_second = tape.gradient(first, weights), tape.gradient(second, weights)
        del tape
        flat_one = tf.concat([tf.reshape(g, [-1]) for g in of_first], axis=0)
        flat_two = tf.concat([tf.reshape(g, [-1]) for g in of_second], axis=0)
        inner = tf.minimum(tf.tensordot(flat_one, flat_two, 1), 0.0)
        together = flat_one - inner / tf.reduce_sum(flat_two**2) * flat_two
        together += flat_two - inner / tf.reduce_sum(flat_one**2) * flat_one
        parts = tf.split(together, [int(np.prod(v.shape)) for v in weights])
        shaped = [tf.reshape(part, v.shape) for part, v in zip(parts, weights, strict=True)]
        optimizer.apply(shaped, weights)
        return first, second, inner

    return BuiltStep(step=step, batch=to_regress(outputs=2), variables=state(model, optimizer))


@case("gradients/tasks_balanced_by_gradient_norms")
def balanced() -> BuiltStep:
    body, heads = mlp(6, 10, 8), [mlp(8, 1), mlp(8, 1)]
    balance = tf.Variable([1.0, 1.0], name="balance")
    weights = [v for part in (body, *heads) for v in part.trainable_variables]
    optimizer, of_balance = sgd(weights), sgd([balance], 0.05)

    def step(x: Any, y: Any) -> Any:
        shared = body.trainable_variables[-2]
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape(persistent=True) as inner:
                hidden = tf.tanh(body(x))
                losses = [
                    balance[i] * tf.reduce_mean(tf.square(y[:, i : i + 1] - heads[i](hidden)))
                    for i in range(2)
                ]
            norms = tf.stack([tf.norm(inner.gradient(loss, shared)) for loss in losses])
            apart = tf.reduce_sum(tf.square(norms - tf.stop_gradient(tf.reduce_mean(norms))))
            total = tf.add_n(losses)
        optimizer.apply(outer.gradient(total, weights), weights)
        of_balance.apply([outer.gradient(apart, balance)], [balance])
        balance.assign(2.0 * balance / tf.reduce_sum(balance))
        return total, norms

    return BuiltStep(
        step=step,
        batch=to_regress(outputs=2),
        variables=[*weights, balance, *state(optimizer, of_balance)],
        same_bits=False,
    )


@case("gradients/accumulated_in_variables")
def accumulated() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    optimizer = adam(weights)
    sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in weights]
    count = tf.Variable(0, dtype=tf.int32, trainable=False)

    def apply() -> None:
        optimizer.apply_gradients(zip([s / 2.0 for s in sums], weights, strict=True))
        for s in sums:
            s.assign(tf.zeros_like(s))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        for s, g in zip(sums, tape.gradient(loss, weights), strict=True):
            s.assign_add(g)
        count.assign_add(1)
        tf.cond(tf.equal(count % 2, 0), apply, lambda: None)
        return loss

    return BuiltStep(
        step=step, batch=to_regress(), variables=[*state(model, optimizer), *sums, count]
    )


@case("gradients/micro_batches_in_a_loop_of_tensorflow")
def micro_batches() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        size = tf.shape(x)[0] // 3
        sums, total = [tf.zeros(v.shape) for v in weights], 0.0
        for i in tf.range(3):
            part_x, part_y = x[i * size : (i + 1) * size], y[i * size : (i + 1) * size]
            with tf.GradientTape() as tape:
                loss = squared(model, part_x, part_y) / 3.0
            gradients = tape.gradient(loss, weights)
            sums = [s + g for s, g in zip(sums, gradients, strict=True)]
            total += loss
        optimizer.apply(sums, weights)
        return total

    return BuiltStep(step=step, batch=to_regress(), variables=state(model, optimizer))


@case("gradients/clipped_for_each_sample_with_noise")
def private() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 5], seed=[1, 2]))
    b = tf.Variable(tf.zeros([5]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w + b)
        tables = tape.jacobian(losses, [w, b])
        flat = [tf.reshape(t, [tf.shape(x)[0], -1]) for t in tables]
        norms = tf.sqrt(tf.add_n([tf.reduce_sum(f**2, axis=1) for f in flat]))
        scale = 1.0 / tf.maximum(1.0, norms / 0.8)
        for i, (variable, table) in enumerate(zip([w, b], flat, strict=True)):
            clipped = tf.reduce_sum(table * scale[:, None], axis=0)
            clipped += 0.1 * tf.random.stateless_normal(tf.shape(clipped), seed=[i, 9])
            mean = clipped / tf.cast(tf.shape(x)[0], tf.float32)
            variable.assign_sub(0.2 * tf.reshape(mean, variable.shape))
        return tf.reduce_mean(losses), norms

    return BuiltStep(step=step, batch=to_classify(), variables=[w, b])


@case("gradients/per_sample_by_vectorized_map")
def vectorised() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2]))

    def step(x: Any, y: Any) -> Any:
        def clipped(sample: Any) -> Any:
            features, target = sample
            error = tf.linalg.matvec(w, features, transpose_a=True) - target
            return tf.clip_by_norm(features[:, None] * error[None], 1.0)

        each = tf.vectorized_map(clipped, (x, y))
        w.assign_sub(0.1 * tf.reduce_mean(each, axis=0))
        return each

    return BuiltStep(step=step, batch=to_regress(), variables=[w])


@case("gradients/loss_scaled_by_hand")
def scaled_by_hand() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights)
    scale, good = tf.Variable(1024.0, trainable=False), tf.Variable(0, trainable=False)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
            scaled = loss * scale
        gradients = [g / scale for g in tape.gradient(scaled, weights)]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
        if finite:
            optimizer.apply(gradients, weights)
            good.assign_add(1)
        else:
            scale.assign(scale / 2.0)
        if good >= 3:
            scale.assign(scale * 2.0)
            good.assign(0)
        return loss, finite

    return BuiltStep(
        step=step, batch=to_regress(), variables=[*state(model, optimizer), scale, good]
    )


@case("gradients/half_precision_with_loss_scale")
def half_precision() -> BuiltStep:
    model = mlp(6, 16, 4, dtype="mixed_float16")
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0)
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = tf.cast(model(x, training=True), tf.float32)
            loss = tf.reduce_mean(tf.square(y - outputs))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return BuiltStep(
        step=step, batch=to_regress(), variables=state(model, optimizer), tolerance=1e-2
    )


@case("gradients/centred_and_noisy")
def centred() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights, momentum=0.9)
    seeds = keras.random.SeedGenerator(3)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        gradients = []
        for g in tape.gradient(loss, weights):
            if len(g.shape) > 1:
                g -= tf.reduce_mean(g, axis=0, keepdims=True)
            gradients.append(g + 0.01 * keras.random.normal(g.shape, seed=seeds))
        optimizer.apply(gradients, weights)
        return loss

    return BuiltStep(
        step=step, batch=to_regress(), variables=[*state(model, optimizer), seeds.state]
    )
