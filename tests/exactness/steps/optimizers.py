"""Updates of variables: by optimizers, by hand, in several passes, and over several steps."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .case import BuiltStep, adam, case, learn, mlp, sgd, state, to_regress


def squared(model: Any, x: Any, y: Any) -> Any:
    """Return the mean square of the errors."""
    return tf.reduce_mean(tf.square(y - model(x, training=True)))


@case("optimizers/update_by_hand")
def by_hand() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2]))
    b = tf.Variable(tf.zeros([4]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - tf.tanh(x @ w) - b))
        dw, db = tape.gradient(loss, [w, b])
        w.assign_sub(0.1 * dw)
        b.assign_sub(0.1 * db)
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=[w, b])


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


@case("optimizers/clipped_by_global_norm")
def clipped_globally() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.3)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss, "norm": norm}

    return BuiltStep(step=step, batch=to_regress(), variables=state(model, optimizer))


@case("optimizers/clipped_by_value_and_norm")
def clipped() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights, momentum=0.9, nesterov=True)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        gradients = [tf.clip_by_value(g, -0.1, 0.1) for g in tape.gradient(loss, weights)]
        gradients = [tf.clip_by_norm(g, 0.2) for g in gradients]
        optimizer.apply(gradients, weights)
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=state(model, optimizer))


def with_optimizer(name: str, optimizer: Any) -> None:
    """Register a step with an optimizer of Keras and its settings."""

    @case(f"optimizers/{name}")
    def build() -> BuiltStep:
        model = mlp(6, 12, 4)
        made = optimizer()
        made.build(model.trainable_variables)
        return learn(lambda x, y: squared(model, x, y), model, to_regress(), optimizer=made)


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


@case("optimizers/schedule_by_a_global_step")
def schedule_by_hand() -> BuiltStep:
    model = mlp(6, 12, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights)
    global_step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def step(x: Any, y: Any) -> Any:
        rate = 0.2 * tf.minimum((tf.cast(global_step, tf.float32) + 1) / 3, 1.0)
        optimizer.learning_rate.assign(rate)
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        optimizer.apply(tape.gradient(loss, weights), weights)
        global_step.assign_add(1)
        return loss, global_step.value(), optimizer.learning_rate.value

    return BuiltStep(
        step=step, batch=to_regress(), variables=[*state(model, optimizer), global_step]
    )


@case("optimizers/one_for_each_part")
def two_rates() -> BuiltStep:
    body, head = mlp(6, 12, 8), mlp(8, 4)
    of_body, of_head = sgd(body.trainable_variables, 0.02), adam(head.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - head(tf.nn.gelu(body(x)))))
        parts = (body.trainable_variables, head.trainable_variables)
        for_body, for_head = tape.gradient(loss, parts)
        of_body.apply(for_body, parts[0])
        of_head.apply(for_head, parts[1])
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=state(body, head, of_body, of_head))
