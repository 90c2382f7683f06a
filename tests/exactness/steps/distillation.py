"""Teachers and students: fixed, averaged, mutual; and agreement between two passes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .case import BuiltStep, adam, case, integers, learn, mlp, normal, sgd, state, to_classify

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@case("distillation/fixed_teacher")
def fixed_teacher() -> BuiltStep:
    teacher, student = mlp(6, 16, 5), mlp(6, 8, 5)
    teacher.trainable = False
    divergence, temperature = keras.losses.KLDivergence(), 3.0
    optimizer = adam(student.trainable_variables)
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    def step(x: Any, y: Any) -> Any:
        taught = teacher(x, training=False)
        with tf.GradientTape() as tape:
            logits = student(x, training=True)
            student_loss = ENTROPY(y, logits)
            distilled = divergence(
                tf.nn.softmax(taught / temperature, axis=1),
                tf.nn.softmax(logits / temperature, axis=1),
            )
            loss = 0.1 * student_loss + (1 - 0.1) * distilled * temperature**2
        weights = student.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        accuracy.update_state(y, logits)
        return {
            "student_loss": student_loss,
            "distillation_loss": distilled,
            accuracy.name: accuracy.result(),
        }

    return BuiltStep(
        step=step, batch=to_classify(), variables=state(teacher, student, optimizer, accuracy)
    )


@case("distillation/hints_of_hidden_layers")
def hints() -> BuiltStep:
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(10, activation="tanh")(inputs)
    teacher = keras.Model(inputs, [hidden, keras.layers.Dense(5)(hidden)])
    teacher.trainable = False
    body, head, adapter = mlp(6, 7), mlp(7, 5), mlp(7, 10)
    weights = [v for part in (body, head, adapter) for v in part.trainable_variables]
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        wanted, taught = teacher(x)
        with tf.GradientTape() as tape:
            hidden = tf.tanh(body(x))
            logits = head(hidden)
            loss = ENTROPY(y, logits) + tf.reduce_mean(tf.square(adapter(hidden) - wanted))
            loss += tf.nn.l2_loss(logits - taught) / tf.cast(tf.shape(x)[0], tf.float32)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return BuiltStep(step=step, batch=to_classify(), variables=[*weights, *optimizer.variables])


@case("distillation/relations_between_samples")
def relations() -> BuiltStep:
    teacher, student = mlp(6, 16, 5), mlp(6, 8, 4, last_bias=False)
    teacher.trainable = False

    def distances(z: Any) -> Any:
        squares = tf.reduce_sum((z[:, None] - z[None]) ** 2, axis=-1)
        far = tf.sqrt(squares + 1e-3)
        return far / tf.reduce_mean(far)

    def loss_of(x: Any, y: Any) -> Any:
        return tf.reduce_mean(keras.losses.huber(distances(teacher(x)), distances(student(x))))

    return learn(loss_of, student, to_classify())


@case("distillation/mean_teacher_with_ramp")
def mean_teacher() -> BuiltStep:
    student, teacher = mlp(6, 10, 5), mlp(6, 10, 5)
    teacher.set_weights(student.get_weights())
    optimizer = adam(student.trainable_variables)
    seeds, steps = keras.random.SeedGenerator(4), tf.Variable(0, dtype=tf.int64)

    def step(x: Any, y: Any, unlabelled: Any) -> Any:
        everything = tf.concat([x, unlabelled], axis=0)
        noisy = everything + 0.1 * keras.random.normal(tf.shape(everything), seed=seeds)
        two = everything + 0.1 * keras.random.normal(tf.shape(everything), seed=seeds)
        ramp = tf.exp(-5.0 * (1.0 - tf.minimum(tf.cast(steps, tf.float32) / 4.0, 1.0)) ** 2)
        with tf.GradientTape() as tape:
            logits = student(noisy, training=True)
            wanted = tf.nn.softmax(teacher(two, training=False))
            labelled = ENTROPY(y, logits[: tf.shape(x)[0]])
            consistency = tf.reduce_mean(tf.square(tf.nn.softmax(logits) - wanted))
            loss = labelled + 5.0 * ramp * consistency
        optimizer.apply(tape.gradient(loss, student.trainable_variables))
        steps.assign_add(1)
        decay = tf.minimum(1.0 - 1.0 / (tf.cast(steps, tf.float32) + 1.0), 0.99)
        for mean, weight in zip(teacher.variables, student.variables, strict=True):
            mean.assign(mean * decay + weight * (1.0 - decay))
        return {"labelled": labelled, "consistency": consistency}

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), integers(rng, 5, n), normal(rng, n, 6)

    return BuiltStep(
        step=step, batch=batch, variables=[*state(student, teacher, optimizer, steps), seeds.state]
    )


@case("distillation/confident_pseudo_labels")
def fixmatch() -> BuiltStep:
    model = mlp(6, 10, 3)

    def loss_of(x: Any, y: Any, weak: Any, strong: Any) -> Any:
        logits = model(tf.concat([x, weak, strong], axis=0))
        labelled, on_weak, on_strong = tf.split(logits, 3)
        guess = tf.stop_gradient(tf.nn.softmax(on_weak))
        mask = tf.cast(tf.reduce_max(guess, axis=1) > 0.5, tf.float32)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.argmax(guess, 1), on_strong)
        return ENTROPY(y, labelled) + tf.reduce_mean(mask * each)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        other = normal(rng, n, 6)
        return normal(rng, n, 6), integers(rng, 3, n), other, other + 0.2 * normal(rng, n, 6)

    return learn(loss_of, model, batch)


@case("distillation/mutual_small_loss_samples")
def co_teaching() -> BuiltStep:
    first, second = mlp(6, 10, 5), mlp(6, 10, 5)
    of_first, of_second = sgd(first.trainable_variables), sgd(second.trainable_variables)
    each_of = tf.nn.sparse_softmax_cross_entropy_with_logits

    def step(x: Any, y: Any) -> Any:
        keep = tf.shape(x)[0] * 3 // 4
        with tf.GradientTape(persistent=True) as tape:
            losses_one, losses_two = each_of(y, first(x)), each_of(y, second(x))
            for_two = tf.argsort(losses_one)[:keep]
            for_one = tf.argsort(losses_two)[:keep]
            loss_one = tf.reduce_mean(tf.gather(losses_one, for_one))
            loss_two = tf.reduce_mean(tf.gather(losses_two, for_two))
        of_first.apply(
            tape.gradient(loss_one, first.trainable_variables), first.trainable_variables
        )
        of_second.apply(
            tape.gradient(loss_two, second.trainable_variables), second.trainable_variables
        )
        return loss_one, loss_two, for_one

    return BuiltStep(
        step=step, batch=to_classify(), variables=state(first, second, of_first, of_second)
    )


@case("distillation/two_dropout_passes")
def r_drop() -> BuiltStep:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(12, activation="tanh"),
            keras.layers.Dropout(0.3, seed=5),
            keras.layers.Dense(5),
        ]
    )

    def loss_of(x: Any, y: Any) -> Any:
        first, second = model(x, training=True), model(x, training=True)
        p, q = tf.nn.log_softmax(first), tf.nn.log_softmax(second)
        there = tf.reduce_sum(tf.exp(p) * (p - q), axis=1)
        back = tf.reduce_sum(tf.exp(q) * (q - p), axis=1)
        return ENTROPY(y, first) + ENTROPY(y, second) + 0.5 * tf.reduce_mean(there + back) / 2

    return learn(loss_of, model, to_classify())


@case("distillation/centred_teacher")
def dino() -> BuiltStep:
    student, teacher = mlp(6, 12, 5), mlp(6, 12, 5)
    teacher.set_weights(student.get_weights())
    center = tf.Variable(tf.zeros([1, 5]), trainable=False)
    optimizer = sgd(student.trainable_variables, momentum=0.9)

    def step(first: Any, second: Any) -> Any:
        taught = teacher(tf.concat([first, second], axis=0), training=False)
        wanted = tf.split(tf.nn.softmax((taught - center) / 0.3), 2)
        with tf.GradientTape() as tape:
            a, b = tf.nn.log_softmax(student(first)), tf.nn.log_softmax(student(second))
            loss = -tf.reduce_mean(tf.reduce_sum(wanted[1] * a + wanted[0] * b, axis=-1)) / 2
        optimizer.apply(tape.gradient(loss, student.trainable_variables))
        center.assign(0.9 * center + 0.1 * tf.reduce_mean(taught, axis=0, keepdims=True))
        for mean, weight in zip(teacher.variables, student.variables, strict=True):
            mean.assign(0.96 * mean + 0.04 * weight)
        return loss

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        x = normal(rng, n, 6)
        return x + 0.2 * normal(rng, n, 6), x + 0.2 * normal(rng, n, 6)

    return BuiltStep(step=step, batch=batch, variables=state(student, teacher, optimizer, center))


@case("distillation/sinkhorn_assignments_of_the_batch")
def swav() -> BuiltStep:
    model = mlp(6, 12, 5)
    prototypes = keras.layers.Dense(4, use_bias=False, kernel_constraint="unit_norm")
    prototypes.build((None, 5))
    whole = keras.Sequential([model, prototypes])

    def sinkhorn(scores: Any) -> Any:
        q = tf.transpose(tf.exp(scores / 0.5))
        q /= tf.reduce_sum(q)
        for _ in range(3):
            q /= tf.reduce_sum(q, axis=1, keepdims=True) * 4.0
            q /= tf.reduce_sum(q, axis=0, keepdims=True) * tf.cast(tf.shape(q)[1], q.dtype)
        return tf.transpose(q * tf.cast(tf.shape(q)[1], q.dtype))

    def loss_of(first: Any, second: Any) -> Any:
        a = prototypes(tf.math.l2_normalize(model(first), axis=1))
        b = prototypes(tf.math.l2_normalize(model(second), axis=1))
        codes_a, codes_b = tf.stop_gradient(sinkhorn(a)), tf.stop_gradient(sinkhorn(b))
        cross = codes_b * tf.nn.log_softmax(a / 0.3) + codes_a * tf.nn.log_softmax(b / 0.3)
        return -0.5 * tf.reduce_mean(tf.reduce_sum(cross, axis=1))

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        x = normal(rng, n, 6)
        return x + 0.2 * normal(rng, n, 6), x + 0.2 * normal(rng, n, 6)

    return learn(loss_of, whole, batch)
