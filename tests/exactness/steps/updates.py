"""Updates of variables by optimizers and by hand, and what is done with gradients before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .case import (
    BuiltStep,
    adam,
    case,
    columns,
    learn,
    learned,
    mlp,
    normals,
    sgd,
    squared,
    state,
    to_classify,
    to_regress,
    trained,
    written,
)


@written(
    "optimizers/update_by_hand",
    to_regress(),
    lambda: (
        tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2])),
        tf.Variable(tf.zeros([4])),
    ),
)
def by_hand(w: Any, b: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(y - tf.tanh(x @ w) - b))
    dw, db = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.1 * db)
    return loss


@case("optimizers/momentum_and_decay_by_hand")
def momentum_by_hand() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    velocities = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in weights]

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        for g, v, m in zip(tape.gradient(loss, weights), weights, velocities, strict=True):
            m.assign(0.9 * m - 0.05 * g)
            v.assign_add(m)
            v.assign(v * (1.0 - 0.05 * 0.01))

    return BuiltStep(step=step, batch=to_regress(), variables=[*weights, *velocities])


@case("optimizers/adam_by_hand")
def adam_by_hand() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    firsts = [tf.Variable(tf.zeros(v.shape)) for v in weights]
    seconds = [tf.Variable(tf.zeros(v.shape)) for v in weights]
    count = tf.Variable(0.0)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        count.assign_add(1.0)
        gradients = tape.gradient(loss, weights)
        for g, v, m, s in zip(gradients, weights, firsts, seconds, strict=True):
            m.assign_add((g - m) * 0.1)
            s.assign_add((tf.square(g) - s) * 0.01)
            corrected = m / (1 - 0.9**count)
            v.assign_sub(0.02 * corrected / (tf.sqrt(s / (1 - 0.99**count)) + 1e-2))
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=[*weights, *firsts, *seconds, count])


@written("optimizers/clipped_by_global_norm", to_regress(), lambda: trained(mlp(6, 12, 4)))
def clipped_globally(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    weights = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = squared(model, x, y)
    gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.3)
    optimizer.apply_gradients(zip(gradients, weights, strict=True))
    return {"loss": loss, "norm": norm}


@written(
    "optimizers/clipped_by_value_and_norm",
    to_regress(),
    lambda: trained(mlp(6, 12, 4), lambda weights: sgd(weights, momentum=0.9, nesterov=True)),
)
def clipped(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    weights = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = squared(model, x, y)
    gradients = [tf.clip_by_value(g, -0.1, 0.1) for g in tape.gradient(loss, weights)]
    gradients = [tf.clip_by_norm(g, 0.2) for g in gradients]
    optimizer.apply(gradients, weights)
    return loss


def with_optimizer(name: str, make: Callable[[], Any]) -> None:
    """Register a step with an optimizer of Keras and its settings."""

    def built(weights: Any) -> Any:
        optimizer = make()
        optimizer.build(weights)
        return optimizer

    learned(f"optimizers/{name}", to_regress(), lambda: mlp(6, 12, 4), optimizer=built)(squared)


with_optimizer("adamw", lambda: keras.optimizers.AdamW(0.02, weight_decay=0.05, epsilon=1e-3))


with_optimizer("amsgrad", lambda: keras.optimizers.Adam(0.02, amsgrad=True, epsilon=1e-3))


with_optimizer(
    "nadam_with_clipnorm", lambda: keras.optimizers.Nadam(0.02, epsilon=1e-3, clipnorm=0.5)
)


with_optimizer(
    "rmsprop_centred", lambda: keras.optimizers.RMSprop(0.02, centered=True, epsilon=1e-2)
)


with_optimizer("adagrad", lambda: keras.optimizers.Adagrad(0.1, epsilon=1e-3))


with_optimizer("adamax", lambda: keras.optimizers.Adamax(0.02, epsilon=1e-3))


with_optimizer("ftrl", lambda: keras.optimizers.Ftrl(0.1, beta=1.0))


with_optimizer("lamb", lambda: keras.optimizers.Lamb(0.02, epsilon=1e-2))


with_optimizer(
    "moving_average",
    lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2),
)


with_optimizer(
    "accumulating_in_keras",
    lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
)


with_optimizer(
    "global_clipnorm_and_cosine_schedule",
    lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.CosineDecay(0.2, 4, warmup_target=0.3, warmup_steps=2),
        global_clipnorm=0.5,
    ),
)


@case("optimizers/slots_made_in_the_first_step")
def late_slots() -> BuiltStep:
    model = mlp(6, 12, 4)
    optimizer = keras.optimizers.Adam(0.02, epsilon=1e-3)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=state(model))


@written(
    "optimizers/schedule_by_a_global_step",
    to_regress(),
    lambda: (*trained(mlp(6, 12, 4)), tf.Variable(0, dtype=tf.int64, trainable=False)),
)
def schedule_by_hand(model: Any, optimizer: Any, global_step: Any, x: Any, y: Any) -> Any:
    weights = model.trainable_variables
    rate = 0.2 * tf.minimum((tf.cast(global_step, tf.float32) + 1) / 3, 1.0)
    optimizer.learning_rate.assign(rate)
    with tf.GradientTape() as tape:
        loss = squared(model, x, y)
    optimizer.apply(tape.gradient(loss, weights), weights)
    global_step.assign_add(1)
    return loss, global_step.value(), optimizer.learning_rate.value


@written(
    "optimizers/one_for_each_part",
    to_regress(),
    lambda: (
        *trained(mlp(6, 12, 8), lambda weights: sgd(weights, 0.02)),
        *trained(mlp(8, 4), adam),
    ),
)
def two_rates(body: Any, of_body: Any, head: Any, of_head: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(y - head(tf.nn.gelu(body(x)))))
    parts = (body.trainable_variables, head.trainable_variables)
    for_body, for_head = tape.gradient(loss, parts)
    of_body.apply(for_body, parts[0])
    of_head.apply(for_head, parts[1])
    return loss


@written("gradients/sharpness_aware", to_regress(), lambda: trained(mlp(6, 12, 4)))
def sharpness_aware(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    weights = model.trainable_variables
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


@written(
    "gradients/conflicting_tasks_projected", to_regress(outputs=2), lambda: trained(mlp(6, 12, 2))
)
def projected(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    weights = model.trainable_variables
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


@written(
    "gradients/micro_batches_in_a_loop_of_tensorflow", to_regress(), lambda: trained(mlp(6, 12, 4))
)
def micro_batches(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    weights = model.trainable_variables
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


@written(
    "gradients/clipped_for_each_sample_with_noise",
    to_classify(),
    lambda: (
        tf.Variable(tf.random.stateless_normal([6, 5], seed=[1, 2])),
        tf.Variable(tf.zeros([5])),
    ),
)
def private(w: Any, b: Any, x: Any, y: Any) -> Any:
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


@written(
    "gradients/per_sample_by_vectorized_map",
    to_regress(),
    lambda: tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2])),
)
def vectorised(w: Any, x: Any, y: Any) -> Any:
    def clipped(sample: Any) -> Any:
        features, target = sample
        error = tf.linalg.matvec(w, features, transpose_a=True) - target
        return tf.clip_by_norm(features[:, None] * error[None], 1.0)

    each = tf.vectorized_map(clipped, (x, y))
    w.assign_sub(0.1 * tf.reduce_mean(each, axis=0))
    return each


@written(
    "gradients/loss_scaled_by_hand",
    to_regress(),
    lambda: (
        *trained(mlp(6, 12, 4)),
        tf.Variable(1024.0, trainable=False),
        tf.Variable(0, trainable=False),
    ),
)
def scaled_by_hand(model: Any, optimizer: Any, scale: Any, good: Any, x: Any, y: Any) -> Any:
    weights = model.trainable_variables
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


@written(
    "gradients/centred_and_noisy",
    to_regress(),
    lambda: (
        *trained(mlp(6, 12, 4), lambda weights: sgd(weights, momentum=0.9)),
        keras.random.SeedGenerator(3),
    ),
)
def centred(model: Any, optimizer: Any, seeds: Any, x: Any, y: Any) -> Any:
    weights = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = squared(model, x, y)
    gradients = []
    for g in tape.gradient(loss, weights):
        if len(g.shape) > 1:
            g -= tf.reduce_mean(g, axis=0, keepdims=True)
        gradients.append(g + 0.01 * keras.random.normal(g.shape, seed=seeds))
    optimizer.apply(gradients, weights)
    return loss


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

    return BuiltStep(
        step=step,
        batch=columns(normals(5, 4), normals(5, 2), normals(6, 4), normals(6, 2)),
        variables=[w, *optimizer.variables],
        same_bits=False,
    )


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


@written(
    "passes/hessian_times_vector_and_curvature",
    to_regress(),
    lambda: trained(mlp(6, 8, 4)),
    same_bits=False,
)
def curvature(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    weights = model.trainable_variables
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


@written(
    "passes/least_squares_step",
    to_regress(outputs=1),
    lambda: tf.Variable(0.3 * tf.random.stateless_normal([6, 1], seed=[1, 2])),
)
def least_squares(w: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        outputs = tf.tanh(x @ w)[:, 0]
    table = tape.jacobian(outputs, w)[:, :, 0]
    normal_matrix = tf.matmul(table, table, transpose_a=True) + 0.5 * tf.eye(6)
    right = tf.linalg.matvec(table, y[:, 0] - outputs, transpose_a=True)
    change = tf.linalg.solve(normal_matrix, right[:, None])
    w.assign_add(0.5 * change)
    return tf.reduce_mean(tf.square(y[:, 0] - outputs))


@written(
    "passes/finite_differences",
    to_regress(),
    lambda: (
        tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2])),
        tf.Variable(0, trainable=False),
    ),
)
def evolution(w: Any, generation: Any, x: Any, y: Any) -> Any:
    change = tf.zeros_like(w)
    for i in range(4):
        noise = tf.random.stateless_normal([6, 4], seed=tf.stack([generation, i]))
        up = tf.reduce_mean(tf.square(y - tf.tanh(x @ (w + 0.3 * noise))))
        down = tf.reduce_mean(tf.square(y - tf.tanh(x @ (w - 0.3 * noise))))
        change += noise * (up - down) / 0.6
    w.assign_sub(0.1 * change / 4)
    generation.assign_add(1)
    return tf.reduce_mean(tf.square(y - tf.tanh(x @ w)))


@case("passes/adversarial_inputs")
def adversarial() -> BuiltStep:
    model = mlp(6, 12, 5)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss_of(x: Any, y: Any) -> Any:
        moved = x
        for _ in range(2):
            with tf.GradientTape() as tape:
                tape.watch(moved)
                loss = entropy(y, model(moved, training=False))
            slope = tape.gradient(loss, moved)
            size = tf.sqrt(tf.reduce_sum(slope**2, axis=1, keepdims=True) + 1e-8)
            moved = tf.stop_gradient(moved + 0.1 * slope / size)
        loss = 0.5 * entropy(y, model(x)) + 0.5 * entropy(y, model(moved))
        return {"loss": loss, "moved": moved}

    return learn(loss_of, model, to_classify())
