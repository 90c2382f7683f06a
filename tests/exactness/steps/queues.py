"""Memories outside of the weights: queues, centres, class means, running statistics."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .case import BuiltStep, case, integers, mlp, normal, of_shape, sgd, state, to_classify

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def two_views(rng: Any, n: int) -> tuple[Any, ...]:
    """Return two views of the same samples."""
    x = normal(rng, n, 6)
    return x + 0.2 * normal(rng, n, 6), x + 0.2 * normal(rng, n, 6)


def momentum_contrast(enqueue: Any) -> BuiltStep:
    """Return a step whose negatives come out of a queue, which ``enqueue`` renews."""
    query, key = mlp(6, 10, 4), mlp(6, 10, 4)
    key.set_weights(query.get_weights())
    queue = tf.Variable(tf.math.l2_normalize(tf.random.stateless_normal([40, 4], [1, 2]), axis=1))
    pointer = tf.Variable(0, trainable=False)
    optimizer = sgd(query.trainable_variables)

    def step(first: Any, second: Any) -> Any:
        for old, new in zip(key.variables, query.variables, strict=True):
            old.assign(0.9 * old + 0.1 * new)
        keys = tf.math.l2_normalize(key(second), axis=1)
        with tf.GradientTape() as tape:
            queries = tf.math.l2_normalize(query(first), axis=1)
            positive = tf.reduce_sum(queries * keys, axis=1, keepdims=True)
            negative = tf.matmul(queries, queue, transpose_b=True)
            logits = tf.concat([positive, negative], axis=1) / 0.3
            loss = ENTROPY(tf.zeros([tf.shape(first)[0]], tf.int32), logits)
        optimizer.apply(tape.gradient(loss, query.trainable_variables))
        enqueue(queue, pointer, keys)
        return loss

    return BuiltStep(
        step=step, batch=two_views, variables=[*state(query, key, optimizer), queue, pointer]
    )


@case("queues/moco_by_concat")
def moco_by_concat() -> BuiltStep:
    def enqueue(queue: Any, pointer: Any, keys: Any) -> None:
        queue.assign(tf.concat([keys, queue], axis=0)[:40])

    return momentum_contrast(enqueue)


@case("queues/moco_by_roll")
def moco_by_roll() -> BuiltStep:
    def enqueue(queue: Any, pointer: Any, keys: Any) -> None:
        size = tf.shape(keys)[0]
        rolled = tf.roll(queue, shift=size, axis=0)
        queue.assign(tf.concat([keys, rolled[size:]], axis=0))

    return momentum_contrast(enqueue)


@case("queues/moco_by_scatter_at_a_pointer")
def moco_by_scatter() -> BuiltStep:
    def enqueue(queue: Any, pointer: Any, keys: Any) -> None:
        rows = (pointer + tf.range(tf.shape(keys)[0])) % 40
        queue.scatter_nd_update(rows[:, None], keys)
        pointer.assign((pointer + tf.shape(keys)[0]) % 40)

    return momentum_contrast(enqueue)


@case("queues/center_loss")
def center_loss() -> BuiltStep:
    body, head = mlp(6, 10, 4), mlp(4, 5)
    centers = tf.Variable(tf.zeros([5, 4]), trainable=False)
    weights = [*body.trainable_variables, *head.trainable_variables]
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = body(x)
            own = tf.gather(centers, y)
            loss = ENTROPY(y, head(tf.tanh(hidden))) + 0.1 * tf.nn.l2_loss(hidden - own) / 10.0
        optimizer.apply(tape.gradient(loss, weights), weights)
        _, place, counts = tf.unique_with_counts(y)
        times = tf.cast(tf.gather(counts, place), tf.float32)[:, None]
        difference = 0.5 * (own - hidden) / (1.0 + times)
        centers.scatter_sub(tf.IndexedSlices(difference, y))
        return loss

    return BuiltStep(
        step=step, batch=to_classify(), variables=[*weights, *optimizer.variables, centers]
    )


@case("queues/class_means_moved_by_segments")
def class_means() -> BuiltStep:
    body = mlp(6, 10, 4)
    means = tf.Variable(tf.random.stateless_normal([5, 4], [3, 1]), trainable=False)
    optimizer = sgd(body.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = body(x)
            far = tf.reduce_sum((hidden[:, None] - means[None]) ** 2, axis=2)
            loss = ENTROPY(y, -far)
        optimizer.apply(tape.gradient(loss, body.trainable_variables))
        sums = tf.math.unsorted_segment_sum(hidden, y, 5)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(y, tf.float32), y, 5)[:, None]
        seen = tf.cast(counts > 0, tf.float32)
        means.assign_add(0.3 * seen * (sums / tf.maximum(counts, 1.0) - means))
        return {"loss": loss, "seen": tf.reduce_sum(seen)}

    return BuiltStep(step=step, batch=to_classify(), variables=[*state(body, optimizer), means])


@case("queues/inputs_normalised_by_running_statistics")
def running_statistics() -> BuiltStep:
    model = mlp(6, 10, 5)
    mean, variance = tf.Variable(tf.zeros([6])), tf.Variable(tf.ones([6]))
    optimizer = sgd(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        now_mean, now_variance = tf.nn.moments(x, axes=[0])
        mean.assign(0.9 * mean + 0.1 * now_mean)
        variance.assign(0.9 * variance + 0.1 * now_variance)
        x = tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)
        with tf.GradientTape() as tape:
            loss = ENTROPY(y, model(x))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    return BuiltStep(
        step=step, batch=to_classify(), variables=[*state(model, optimizer), mean, variance]
    )


@case("queues/clusters_of_minibatches")
def clusters() -> BuiltStep:
    centers = tf.Variable(tf.random.stateless_normal([4, 6], [5, 1]))
    counts = tf.Variable(tf.zeros([4]))

    def step(x: Any) -> Any:
        far = tf.reduce_sum((x[:, None] - centers[None]) ** 2, axis=2)
        nearest = tf.argmin(far, axis=1, output_type=tf.int32)
        chosen = tf.one_hot(nearest, 4)
        number = tf.reduce_sum(chosen, axis=0)
        counts.assign_add(number)
        sums = tf.matmul(chosen, x, transpose_a=True) - number[:, None] * centers
        centers.assign_add(sums / tf.maximum(counts, 1.0)[:, None])
        return {"inertia": tf.reduce_sum(tf.reduce_min(far, axis=1)), "labels": nearest}

    return BuiltStep(step=step, batch=of_shape(6), variables=[centers, counts])


@case("queues/memory_of_losses_by_sample_number")
def memory_of_losses() -> BuiltStep:
    model = mlp(6, 10, 5)
    memory = tf.Variable(tf.ones([100]), trainable=False)
    optimizer = sgd(model.trainable_variables)

    def step(x: Any, y: Any, number: Any) -> Any:
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
            weight = tf.nn.softmax(tf.gather(memory, number))
            loss = tf.reduce_sum(weight * each)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        memory.scatter_update(tf.IndexedSlices(each, number))
        return loss

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        numbers = rng.permutation(100)[:n].astype("int32")
        return normal(rng, n, 6), integers(rng, 5, n), numbers

    return BuiltStep(step=step, batch=batch, variables=[*state(model, optimizer), memory])
