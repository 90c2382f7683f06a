"""Distances between parts of the batch: kernels, covariances, groups, transport, graphs."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .case import Batch, BuiltStep, case, integers, learn, mlp, normal, sgd, to_classify, to_regress

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def source_and_target(rng: Any, n: int) -> tuple[Any, ...]:
    """Return labelled samples of one domain, and samples of another."""
    return normal(rng, n, 6), integers(rng, 5, n), 0.5 + 1.3 * normal(rng, n, 6)


def adapted(distance: Any) -> BuiltStep:
    """Return a step that brings the features of two domains together."""
    body, head = mlp(6, 10, 4), mlp(4, 5)
    whole = keras.Sequential([body, head])

    def loss_of(x: Any, y: Any, other: Any) -> Any:
        a, b = tf.tanh(body(x)), tf.tanh(body(other))
        return ENTROPY(y, head(a)) + 0.5 * distance(a, b)

    return learn(loss_of, whole, source_and_target)


@case("domains/kernel_mean_discrepancy")
def kernel_mean() -> BuiltStep:
    def kernel(a: Any, b: Any) -> Any:
        squares = tf.reduce_sum((a[:, None] - b[None]) ** 2, axis=2)
        return tf.add_n([tf.exp(-squares / width) for width in (0.5, 2.0, 8.0)])

    def distance(a: Any, b: Any) -> Any:
        within = tf.reduce_mean(kernel(a, a)) + tf.reduce_mean(kernel(b, b))
        return within - 2.0 * tf.reduce_mean(kernel(a, b))

    return adapted(distance)


@case("domains/kernel_with_median_width_without_bias")
def median_width() -> BuiltStep:
    def distance(a: Any, b: Any) -> Any:
        both = tf.concat([a, b], axis=0)
        n = tf.shape(a)[0]
        squares = tf.reduce_sum((both[:, None] - both[None]) ** 2, axis=2)
        ordered = tf.sort(tf.reshape(squares, [-1]))
        width = tf.stop_gradient(ordered[tf.size(ordered) // 2])
        kernel = tf.linalg.set_diag(tf.exp(-squares / width), tf.zeros([2 * n]))
        number = tf.cast(n * (n - 1), tf.float32)
        within = tf.reduce_sum(kernel[:n, :n]) + tf.reduce_sum(kernel[n:, n:])
        return within / number - 2 * tf.reduce_mean(kernel[:n, n:])

    return adapted(distance)


@case("domains/covariances")
def coral() -> BuiltStep:
    def covariance(a: Any) -> Any:
        n = tf.cast(tf.shape(a)[0], tf.float32)
        sums = tf.reduce_sum(a, axis=0, keepdims=True)
        return (tf.matmul(a, a, transpose_a=True) - tf.matmul(sums, sums, transpose_a=True) / n) / (
            n - 1
        )

    return adapted(lambda a, b: tf.reduce_sum((covariance(a) - covariance(b)) ** 2) / (4 * 4.0))


@case("domains/transport_by_sinkhorn")
def transport() -> BuiltStep:
    def distance(a: Any, b: Any) -> Any:
        cost = tf.reduce_sum((a[:, None] - b[None]) ** 2, axis=2)
        n = tf.shape(a)[0]
        even = -tf.math.log(tf.cast(n, tf.float32))
        f, g = tf.zeros([n]), tf.zeros([n])
        for _ in range(4):
            f = -0.5 * tf.reduce_logsumexp((g[None] - cost) / 0.5 + even, axis=1)
            g = -0.5 * tf.reduce_logsumexp((f[:, None] - cost) / 0.5 + even, axis=0)
        plan = tf.exp((f[:, None] + g[None] - cost) / 0.5 + 2 * even)
        return tf.reduce_sum(plan * cost)

    return adapted(distance)


@case("domains/sorted_projections")
def sliced() -> BuiltStep:
    def distance(a: Any, b: Any) -> Any:
        directions = tf.math.l2_normalize(tf.random.stateless_normal([4, 6], [1, 5]), axis=0)
        first, second = tf.sort(a @ directions, axis=0), tf.sort(b @ directions, axis=0)
        return tf.reduce_mean((first - second) ** 2)

    return adapted(distance)


@case("domains/normalised_for_each_half_of_the_batch")
def halves() -> BuiltStep:
    def distance(a: Any, b: Any) -> Any:
        both = tf.concat([a, b], axis=0)
        mean, variance = tf.nn.moments(both, axes=[0], keepdims=True)
        first, second = tf.split((both - mean) / tf.sqrt(variance + 1e-2), 2)
        return tf.reduce_sum((tf.reduce_mean(first, axis=0) - tf.reduce_mean(second, axis=0)) ** 2)

    return adapted(distance)


def with_groups(outputs: int = 5, groups: int = 3) -> Batch:
    """Return what makes samples, labels and the groups they belong to."""

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), integers(rng, outputs, n), integers(rng, groups, n)

    return batch


@case("domains/worst_group_weighted_by_a_variable")
def worst_group() -> BuiltStep:
    model = mlp(6, 10, 5)
    shares = tf.Variable(tf.ones([3]) / 3, trainable=False)

    def loss_of(x: Any, y: Any, group: Any) -> Any:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
        sums = tf.math.unsorted_segment_sum(each, group, 3)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(each), group, 3)
        means = tf.math.divide_no_nan(sums, counts)
        moved = shares * tf.exp(0.3 * tf.stop_gradient(means))
        shares.assign(moved / tf.reduce_sum(moved))
        return tf.reduce_sum(shares * means)

    return learn(loss_of, model, with_groups(), extra=[shares])


@case("domains/equal_rates_for_two_groups")
def equal_rates() -> BuiltStep:
    model = mlp(6, 10, 1)

    def loss_of(x: Any, y: Any, group: Any) -> Any:
        logits, member = model(x)[:, 0], tf.cast(group, tf.float32)
        each = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(y, tf.float32), logits)
        shares = tf.sigmoid(logits)
        member_share = tf.reduce_sum(shares * member) / (tf.reduce_sum(member) + 0.1)
        other = tf.reduce_sum(shares * (1 - member)) / (tf.reduce_sum(1 - member) + 0.1)
        return tf.reduce_mean(each) + 0.5 * (member_share - other) ** 2

    return learn(loss_of, model, with_groups(2, 2))


@case("domains/penalty_of_invariance")
def invariance() -> BuiltStep:
    model = mlp(6, 10, 5)

    def loss_of(x: Any, y: Any, group: Any) -> Any:
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

    return learn(loss_of, model, with_groups(5, 2), same_bits=False)


@case("domains/prototypes_of_support_and_query")
def prototypes() -> BuiltStep:
    model = mlp(6, 10, 4)

    def loss_of(support: Any, labels: Any, query: Any, wanted: Any) -> Any:
        one_hot = tf.one_hot(labels, 4)
        counts = tf.maximum(tf.reduce_sum(one_hot, axis=0), 1.0)
        means = tf.matmul(one_hot, model(support), transpose_a=True) / counts[:, None]
        far = tf.reduce_sum((model(query)[:, None] - means[None]) ** 2, axis=2)
        return ENTROPY(wanted, -far)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), integers(rng, 4, n), normal(rng, n, 6), integers(rng, 4, n)

    return learn(loss_of, model, batch)


@case("domains/matched_by_attention_over_the_support")
def matching() -> BuiltStep:
    model = mlp(6, 10, 4)

    def loss_of(support: Any, labels: Any, query: Any, wanted: Any) -> Any:
        a = tf.math.l2_normalize(model(support), axis=1)
        b = tf.math.l2_normalize(model(query), axis=1)
        attention = tf.nn.softmax(4.0 * tf.matmul(b, a, transpose_b=True), axis=1)
        shares = tf.matmul(attention, tf.one_hot(labels, 4))
        return -tf.reduce_mean(tf.math.log(tf.gather(shares, wanted, batch_dims=1) + 0.05))

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), integers(rng, 4, n), normal(rng, n, 6), integers(rng, 4, n)

    return learn(loss_of, model, batch)


@case("domains/gaussian_process_over_the_batch")
def gaussian_process() -> BuiltStep:
    body = mlp(6, 8, 3)
    logs = keras.Variable([0.0, 0.0], name="logs")
    weights = [*body.trainable_variables, logs]
    optimizer = sgd(weights, 0.05)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            z = body(x)
            squares = tf.reduce_sum((z[:, None] - z[None]) ** 2, axis=2)
            kernel = tf.exp(logs[0] - 0.5 * squares)
            kernel += (0.5 + tf.exp(logs[1])) * tf.eye(tf.shape(x)[0])
            root = tf.linalg.cholesky(kernel)
            solved = tf.linalg.cholesky_solve(root, y)
            fit = 0.5 * tf.reduce_sum(y * solved)
            size = tf.cast(tf.shape(x)[0], tf.float32)
            loss = (fit + tf.reduce_sum(tf.math.log(tf.linalg.diag_part(root)))) / size
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return BuiltStep(
        step=step,
        batch=to_regress(outputs=1),
        variables=[*weights, *optimizer.variables],
        tolerance=1e-4,
    )


@case("domains/graph_with_samples_as_nodes")
def graph() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 8], seed=[1, 2]))
    v = tf.Variable(tf.random.stateless_normal([8, 5], seed=[3, 4]))
    optimizer = sgd([w, v])

    def step(x: Any, y: Any, edges: Any) -> Any:
        with tf.GradientTape() as tape:
            edges = edges + tf.eye(tf.shape(x)[0])
            scale = tf.math.rsqrt(tf.reduce_sum(edges, axis=1))
            edges = scale[:, None] * edges * scale[None]
            hidden = tf.tanh(edges @ (x @ w))
            loss = ENTROPY(y, edges @ (hidden @ v))
        optimizer.apply(tape.gradient(loss, [w, v]), [w, v])
        return loss

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        edges = (rng.uniform(size=(n, n)) < 0.3).astype("float32")
        return *to_classify()(rng, n), edges + edges.T

    return BuiltStep(step=step, batch=batch, variables=[w, v, *optimizer.variables])
