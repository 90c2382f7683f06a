"""Losses that compare samples: contrasts, teachers and students, distances of domains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from exactness.models import sequential

from .case import (
    Batch,
    BuiltStep,
    Loss,
    adam,
    case,
    columns,
    integers,
    learn,
    learned,
    mlp,
    normal,
    normals,
    sgd,
    state,
    to_classify,
    to_regress,
    whole,
)


def two_views(features: int = 8) -> Batch:
    """Return what makes two views of the same samples."""

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        x = normal(rng, n, features)
        return x + 0.3 * normal(rng, n, features), x + 0.3 * normal(rng, n, features)

    return batch


labelled = to_classify(8, 4)


@learned("contrastive/simclr", two_views(), lambda: mlp(8, 12, 6))
def simclr(model: Any, first: Any, second: Any) -> Any:
    a = tf.math.l2_normalize(model(first), axis=1)
    b = tf.math.l2_normalize(model(second), axis=1)
    similarities = tf.matmul(a, b, transpose_b=True) / 0.5
    labels = tf.range(tf.shape(a)[0])
    there = keras.losses.sparse_categorical_crossentropy(labels, similarities, from_logits=True)
    back = keras.losses.sparse_categorical_crossentropy(
        labels, tf.transpose(similarities), from_logits=True
    )
    return tf.reduce_mean(there + back) / 2


@learned("contrastive/nt_xent_of_concatenated_views", two_views(), lambda: mlp(8, 12, 6))
def nt_xent(model: Any, first: Any, second: Any) -> Any:
    size = tf.shape(first)[0]
    z = tf.math.l2_normalize(model(tf.concat([first, second], axis=0)), axis=1)
    similarities = tf.matmul(z, z, transpose_b=True) / 0.5 - 1e9 * tf.eye(2 * size)
    partner = tf.concat([tf.range(size) + size, tf.range(size)], axis=0)
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=partner, logits=similarities)
    )


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


@learned("contrastive/supervised", labelled, lambda: mlp(8, 12, 6))
def supervised(model: Any, x: Any, y: Any) -> Any:
    z = tf.math.l2_normalize(model(x), axis=1)
    logits = tf.matmul(z, z, transpose_b=True) / 0.5
    logits -= tf.stop_gradient(tf.reduce_max(logits, axis=1, keepdims=True))
    others = 1.0 - tf.eye(tf.shape(x)[0])
    same = tf.cast(y[:, None] == y[None], tf.float32) * others
    log_of_sum = tf.math.log(tf.reduce_sum(tf.exp(logits) * others, axis=1, keepdims=True))
    each = tf.reduce_sum(same * (logits - log_of_sum), axis=1)
    return -tf.reduce_mean(tf.math.divide_no_nan(each, tf.reduce_sum(same, axis=1)))


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

    return BuiltStep(step=step, batch=to_regress(8, 5), variables=[*weights, *optimizer.variables])


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


@learned("contrastive/triplet_of_all_pairs", labelled, lambda: mlp(8, 12, 6, last_bias=False))
def triplet(model: Any, x: Any, y: Any) -> Any:
    z = model(x)
    squares = tf.reduce_sum(z**2, axis=1)
    far = squares[:, None] - 2 * tf.matmul(z, z, transpose_b=True) + squares[None]
    same = tf.cast(y[:, None] == y[None], tf.float32)
    hardest_same = tf.reduce_max(far * same, axis=1)
    hardest_other = tf.reduce_min(far + 1e6 * same, axis=1)
    hardest_other = tf.where(hardest_other > 1e5, 0.0, hardest_other)
    return tf.reduce_mean(tf.nn.softplus(hardest_same - hardest_other + 0.2))


@learned("contrastive/triplet_of_every_triple", labelled, lambda: mlp(8, 12, 6))
def every_triple(model: Any, x: Any, y: Any) -> Any:
    z = tf.math.l2_normalize(model(x), axis=1)
    far = 2.0 - 2.0 * tf.matmul(z, z, transpose_b=True)
    each = tf.nn.softplus(far[:, :, None] - far[:, None, :] + 0.5)
    same = tf.cast(y[:, None] == y[None], tf.float32)
    valid = (same - tf.eye(tf.shape(x)[0]))[:, :, None] * (1 - same)[:, None, :]
    return tf.reduce_sum(each * valid) / (tf.reduce_sum(valid) + 1e-6)


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

    def loss_of(x: Any, y: Any) -> Any:
        wanted, taught = teacher(x)
        hidden = tf.tanh(body(x))
        logits = head(hidden)
        loss = ENTROPY(y, logits) + tf.reduce_mean(tf.square(adapter(hidden) - wanted))
        loss += tf.nn.l2_loss(logits - taught) / tf.cast(tf.shape(x)[0], tf.float32)
        return loss

    return learn(loss_of, (body, head, adapter), to_classify())


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

    return BuiltStep(
        step=step,
        batch=columns(normals(6), whole(5), normals(6)),
        variables=[*state(student, teacher, optimizer, steps), seeds.state],
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


@learned(
    "distillation/two_dropout_passes",
    to_classify(),
    lambda: sequential(
        (6,),
        keras.layers.Dense(12, activation="tanh"),
        keras.layers.Dropout(0.3, seed=5),
        keras.layers.Dense(5),
    ),
)
def r_drop(model: Any, x: Any, y: Any) -> Any:
    first, second = model(x, training=True), model(x, training=True)
    p, q = tf.nn.log_softmax(first), tf.nn.log_softmax(second)
    there = tf.reduce_sum(tf.exp(p) * (p - q), axis=1)
    back = tf.reduce_sum(tf.exp(q) * (q - p), axis=1)
    return ENTROPY(y, first) + ENTROPY(y, second) + 0.5 * tf.reduce_mean(there + back) / 2


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


def source_and_target(rng: Any, n: int) -> tuple[Any, ...]:
    return normal(rng, n, 6), integers(rng, 5, n), 0.5 + 1.3 * normal(rng, n, 6)


def adapted(name: str) -> Callable[[Loss], Loss]:
    """Register a step that brings the features of two domains together by a distance."""

    def add(distance: Loss) -> Loss:
        @learned(name, source_and_target, lambda: (mlp(6, 10, 4), mlp(4, 5)))
        def loss_of(body: Any, head: Any, x: Any, y: Any, other: Any) -> Any:
            a, b = tf.tanh(body(x)), tf.tanh(body(other))
            return ENTROPY(y, head(a)) + 0.5 * distance(a, b)

        return distance

    return add


@adapted("domains/kernel_mean_discrepancy")
def kernel_mean(a: Any, b: Any) -> Any:
    def kernel(a: Any, b: Any) -> Any:
        squares = tf.reduce_sum((a[:, None] - b[None]) ** 2, axis=2)
        return tf.add_n([tf.exp(-squares / width) for width in (0.5, 2.0, 8.0)])

    within = tf.reduce_mean(kernel(a, a)) + tf.reduce_mean(kernel(b, b))
    return within - 2.0 * tf.reduce_mean(kernel(a, b))


@adapted("domains/kernel_with_median_width_without_bias")
def median_width(a: Any, b: Any) -> Any:
    both = tf.concat([a, b], axis=0)
    n = tf.shape(a)[0]
    squares = tf.reduce_sum((both[:, None] - both[None]) ** 2, axis=2)
    ordered = tf.sort(tf.reshape(squares, [-1]))
    width = tf.stop_gradient(ordered[tf.size(ordered) // 2])
    kernel = tf.linalg.set_diag(tf.exp(-squares / width), tf.zeros([2 * n]))
    number = tf.cast(n * (n - 1), tf.float32)
    within = tf.reduce_sum(kernel[:n, :n]) + tf.reduce_sum(kernel[n:, n:])
    return within / number - 2 * tf.reduce_mean(kernel[:n, n:])


@adapted("domains/covariances")
def coral(a: Any, b: Any) -> Any:
    def covariance(a: Any) -> Any:
        n = tf.cast(tf.shape(a)[0], tf.float32)
        sums = tf.reduce_sum(a, axis=0, keepdims=True)
        return (tf.matmul(a, a, transpose_a=True) - tf.matmul(sums, sums, transpose_a=True) / n) / (
            n - 1
        )

    return tf.reduce_sum((covariance(a) - covariance(b)) ** 2) / (4 * 4.0)


@adapted("domains/transport_by_sinkhorn")
def transport(a: Any, b: Any) -> Any:
    cost = tf.reduce_sum((a[:, None] - b[None]) ** 2, axis=2)
    n = tf.shape(a)[0]
    even = -tf.math.log(tf.cast(n, tf.float32))
    f, g = tf.zeros([n]), tf.zeros([n])
    for _ in range(4):
        f = -0.5 * tf.reduce_logsumexp((g[None] - cost) / 0.5 + even, axis=1)
        g = -0.5 * tf.reduce_logsumexp((f[:, None] - cost) / 0.5 + even, axis=0)
    plan = tf.exp((f[:, None] + g[None] - cost) / 0.5 + 2 * even)
    return tf.reduce_sum(plan * cost)


@adapted("domains/sorted_projections")
def sliced(a: Any, b: Any) -> Any:
    directions = tf.math.l2_normalize(tf.random.stateless_normal([4, 6], [1, 5]), axis=0)
    first, second = tf.sort(a @ directions, axis=0), tf.sort(b @ directions, axis=0)
    return tf.reduce_mean((first - second) ** 2)


@adapted("domains/normalised_for_each_half_of_the_batch")
def halves(a: Any, b: Any) -> Any:
    both = tf.concat([a, b], axis=0)
    mean, variance = tf.nn.moments(both, axes=[0], keepdims=True)
    first, second = tf.split((both - mean) / tf.sqrt(variance + 1e-2), 2)
    return tf.reduce_sum((tf.reduce_mean(first, axis=0) - tf.reduce_mean(second, axis=0)) ** 2)


def with_groups(outputs: int = 5, groups: int = 3) -> Batch:
    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), integers(rng, outputs, n), integers(rng, groups, n)

    return batch


@learned(
    "domains/worst_group_weighted_by_a_variable",
    with_groups(),
    lambda: (mlp(6, 10, 5), tf.Variable(tf.ones([3]) / 3, trainable=False)),
)
def worst_group(model: Any, shares: Any, x: Any, y: Any, group: Any) -> Any:
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
    sums = tf.math.unsorted_segment_sum(each, group, 3)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(each), group, 3)
    means = tf.math.divide_no_nan(sums, counts)
    moved = shares * tf.exp(0.3 * tf.stop_gradient(means))
    shares.assign(moved / tf.reduce_sum(moved))
    return tf.reduce_sum(shares * means)


@learned("domains/equal_rates_for_two_groups", with_groups(2, 2), lambda: mlp(6, 10, 1))
def equal_rates(model: Any, x: Any, y: Any, group: Any) -> Any:
    logits, member = model(x)[:, 0], tf.cast(group, tf.float32)
    each = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(y, tf.float32), logits)
    shares = tf.sigmoid(logits)
    member_share = tf.reduce_sum(shares * member) / (tf.reduce_sum(member) + 0.1)
    other = tf.reduce_sum(shares * (1 - member)) / (tf.reduce_sum(1 - member) + 0.1)
    return tf.reduce_mean(each) + 0.5 * (member_share - other) ** 2


@learned("domains/penalty_of_invariance", with_groups(5, 2), lambda: mlp(6, 10, 5), same_bits=False)
def invariance(model: Any, x: Any, y: Any, group: Any) -> Any:
    logits = model(x)
    total = 0.0
    for g in range(2):
        mask = tf.cast(group == g, tf.float32)
        scale = tf.ones([])
        with tf.GradientTape() as tape:
            tape.watch(scale)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits * scale)
            risk = tf.reduce_sum(each * mask) / (tf.reduce_sum(mask) + 1e-3)
        total += risk + 0.5 * tape.gradient(risk, scale) ** 2
    return total / 2


@learned(
    "domains/prototypes_of_support_and_query",
    columns(normals(6), whole(4), normals(6), whole(4)),
    lambda: mlp(6, 10, 4),
)
def prototypes(model: Any, support: Any, labels: Any, query: Any, wanted: Any) -> Any:
    one_hot = tf.one_hot(labels, 4)
    counts = tf.maximum(tf.reduce_sum(one_hot, axis=0), 1.0)
    means = tf.matmul(one_hot, model(support), transpose_a=True) / counts[:, None]
    far = tf.reduce_sum((model(query)[:, None] - means[None]) ** 2, axis=2)
    return ENTROPY(wanted, -far)


@learned(
    "domains/matched_by_attention_over_the_support",
    columns(normals(6), whole(4), normals(6), whole(4)),
    lambda: mlp(6, 10, 4),
)
def matching(model: Any, support: Any, labels: Any, query: Any, wanted: Any) -> Any:
    a = tf.math.l2_normalize(model(support), axis=1)
    b = tf.math.l2_normalize(model(query), axis=1)
    attention = tf.nn.softmax(4.0 * tf.matmul(b, a, transpose_b=True), axis=1)
    shares = tf.matmul(attention, tf.one_hot(labels, 4))
    return -tf.reduce_mean(tf.math.log(tf.gather(shares, wanted, batch_dims=1) + 0.05))


@learned(
    "domains/gaussian_process_over_the_batch",
    to_regress(outputs=1),
    lambda: (mlp(6, 8, 3), keras.Variable([0.0, 0.0], name="logs")),
    optimizer=lambda weights: sgd(weights, 0.05),
    tolerance=1e-4,
)
def gaussian_process(body: Any, logs: Any, x: Any, y: Any) -> Any:
    z = body(x)
    squares = tf.reduce_sum((z[:, None] - z[None]) ** 2, axis=2)
    kernel = tf.exp(logs[0] - 0.5 * squares)
    kernel += (0.5 + tf.exp(logs[1])) * tf.eye(tf.shape(x)[0])
    root = tf.linalg.cholesky(kernel)
    solved = tf.linalg.cholesky_solve(root, y)
    fit = 0.5 * tf.reduce_sum(y * solved)
    size = tf.cast(tf.shape(x)[0], tf.float32)
    return (fit + tf.reduce_sum(tf.math.log(tf.linalg.diag_part(root)))) / size


@case("domains/graph_with_samples_as_nodes")
def graph() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 8], seed=[1, 2]))
    v = tf.Variable(tf.random.stateless_normal([8, 5], seed=[3, 4]))

    def loss_of(x: Any, y: Any, edges: Any) -> Any:
        edges = edges + tf.eye(tf.shape(x)[0])
        scale = tf.math.rsqrt(tf.reduce_sum(edges, axis=1))
        edges = scale[:, None] * edges * scale[None]
        hidden = tf.tanh(edges @ (x @ w))
        return ENTROPY(y, edges @ (hidden @ v))

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        edges = (rng.uniform(size=(n, n)) < 0.3).astype("float32")
        return *to_classify()(rng, n), edges + edges.T

    return learn(loss_of, (w, v), batch)
