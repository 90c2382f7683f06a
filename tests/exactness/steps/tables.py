"""Tables that the batch looks up, experts that it is sent to, memories that it renews."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

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
    of_shape,
    sgd,
    state,
    to_classify,
    to_regress,
    trained,
    whole,
    written,
)


def pairs(first: int = 20, second: int = 15) -> Batch:
    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return integers(rng, first, n), integers(rng, second, n), normal(rng, n)

    return batch


def table(rows: int, width: int, seed: int) -> tf.Variable:
    return tf.Variable(0.5 * tf.random.stateless_normal([rows, width], seed=[seed, 1]))


@case("embeddings/factors_with_sparse_updates")
def factors() -> BuiltStep:
    users, things = table(20, 4, 1), table(15, 4, 2)
    biases = tf.Variable(tf.zeros([15]))
    weights = [users, things, biases]
    optimizer = sgd(weights, 0.5)

    def step(user: Any, thing: Any, rating: Any) -> Any:
        with tf.GradientTape() as tape:
            u, v = tf.nn.embedding_lookup(users, user), tf.nn.embedding_lookup(things, thing)
            guess = tf.reduce_sum(u * v, axis=1) + tf.gather(biases, thing)
            loss = tf.reduce_mean((rating - guess) ** 2)
            loss += 0.01 * (tf.nn.l2_loss(u) + tf.nn.l2_loss(v)) / 20.0
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return BuiltStep(step=step, batch=pairs(), variables=[*weights, *optimizer.variables])


@case("embeddings/sparse_gradients_into_adam_with_clipping")
def sparse_adam() -> BuiltStep:
    users, things = table(20, 4, 1), table(15, 4, 2)
    optimizer = adam([users, things], 0.05)

    def step(user: Any, thing: Any, rating: Any) -> Any:
        with tf.GradientTape() as tape:
            guess = tf.reduce_sum(tf.gather(users, user) * tf.gather(things, thing), axis=1)
            loss = tf.reduce_mean((rating - guess) ** 2)
        gradients = tape.gradient(loss, [users, things])
        gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply(gradients, [users, things])
        return loss, norm

    return BuiltStep(step=step, batch=pairs(), variables=[users, things, *optimizer.variables])


@written("embeddings/sparse_update_by_hand", pairs(), lambda: (table(20, 4, 1), table(15, 4, 2)))
def sparse_by_hand(users: Any, things: Any, user: Any, thing: Any, rating: Any) -> Any:
    with tf.GradientTape() as tape:
        guess = tf.reduce_sum(tf.gather(users, user) * tf.gather(things, thing), axis=1)
        loss = tf.reduce_sum((rating - guess) ** 2)
    for variable, g in zip([users, things], tape.gradient(loss, [users, things]), strict=True):
        variable.scatter_sub(tf.IndexedSlices(0.05 * g.values, g.indices))
    return loss


@case("embeddings/layers_of_keras")
def keras_layers() -> BuiltStep:
    user, thing = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    u = keras.layers.Embedding(20, 4, embeddings_regularizer="l2")(user)
    v = keras.layers.Embedding(15, 4)(thing)
    hidden = keras.layers.Dense(6, activation="gelu")(keras.layers.Concatenate()([u, v]))
    model = keras.Model([user, thing], keras.layers.Dense(1)(hidden))

    def loss_of(user: Any, thing: Any, rating: Any) -> Any:
        guess = model([user, thing], training=True)[:, 0]
        return keras.losses.MeanSquaredError()(rating, guess) + sum(model.losses)

    return learn(loss_of, model, pairs(), optimizer=adam)


@case("embeddings/two_towers_with_negatives_of_the_batch")
def two_towers() -> BuiltStep:
    users, things = table(20, 4, 1), table(15, 4, 2)
    seen = tf.Variable(tf.ones([15]), trainable=False)
    optimizer = sgd([users, things], 0.5)

    def step(user: Any, thing: Any, rating: Any) -> Any:
        number = tf.shape(user)[0]
        with tf.GradientTape() as tape:
            u = tf.nn.embedding_lookup(users, user)
            v = tf.nn.embedding_lookup(things, thing)
            logits = tf.matmul(u, v, transpose_b=True)
            logits -= tf.math.log(tf.gather(seen, thing) / tf.reduce_sum(seen))[None]
            same = thing[:, None] == thing[None]
            logits = tf.where(same & ~tf.eye(number, dtype=tf.bool), -1e9, logits)
            loss = tf.reduce_sum(
                tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(number), logits)
            )
            loss /= tf.cast(number, tf.float32)
        optimizer.apply(tape.gradient(loss, [users, things]), [users, things])
        seen.scatter_add(tf.IndexedSlices(tf.ones([number]), thing))
        return loss

    return BuiltStep(
        step=step, batch=pairs(), variables=[users, things, seen, *optimizer.variables]
    )


@learned(
    "embeddings/words_with_negatives_given",
    columns(whole(30), whole(30), whole(30, 4)),
    lambda: (table(30, 5, 1), table(30, 5, 2)),
    optimizer=lambda weights: sgd(weights, 0.5),
)
def words(centers: Any, contexts: Any, center: Any, context: Any, negatives: Any) -> Any:
    c = tf.gather(centers, center)
    others = tf.gather(contexts, tf.concat([context[:, None], negatives], axis=1))
    logits = tf.einsum("bf,bkf->bk", c, others)
    labels = tf.concat([tf.ones_like(logits[:, :1]), tf.zeros_like(logits[:, 1:])], axis=1)
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(tf.reduce_sum(each, axis=1))


@learned(
    "embeddings/sampled_softmax_with_given_candidates",
    to_classify(classes=30),
    lambda: (mlp(6, 8, 5), table(30, 5, 2), tf.Variable(tf.zeros([30]))),
)
def sampled_softmax(body: Any, output: Any, bias: Any, x: Any, y: Any) -> Any:
    candidates = (
        tf.range(0, 30, 4, dtype=tf.int64),
        tf.fill([tf.shape(x)[0], 1], 0.3),
        tf.fill([8], 0.3),
    )
    each = tf.nn.sampled_softmax_loss(
        output,
        bias,
        tf.cast(y[:, None], tf.int64),
        tf.tanh(body(x)),
        8,
        30,
        sampled_values=candidates,
    )
    return tf.reduce_mean(each)


@written("embeddings/rows_between_writes", columns(whole(20), normals(4)), lambda: table(20, 4, 1))
def between_writes(rows: Any, ids: Any, y: Any) -> Any:
    """Every lookup gives the rows of its moment."""
    before = tf.nn.embedding_lookup(rows, ids)
    rows.scatter_sub(tf.IndexedSlices(0.1 * (before - y), ids))
    between, total = tf.gather_nd(rows, ids[:, None]), tf.zeros([4])
    for shift in tf.range(3):
        total += tf.reduce_sum(tf.gather(rows, (ids + shift) % 20), axis=0)
    rows.assign(0.9 * rows)
    return before, between, total, tf.gather(rows, ids)


@learned(
    "embeddings/bags_summed_by_segments",
    columns(whole(20, 3), normals()),
    lambda: (table(20, 4, 1), tf.Variable(tf.random.stateless_normal([4], seed=[2, 2]))),
)
def bags(rows: Any, head: Any, ids: Any, y: Any) -> Any:
    size = tf.shape(ids)[0]
    flat = tf.gather(rows, tf.reshape(ids, [-1]))
    owner = tf.repeat(tf.range(size), 3)
    bag = tf.math.segment_mean(flat, owner)
    return tf.reduce_mean((y - tf.linalg.matvec(tf.tanh(bag), head)) ** 2)


@case("embeddings/fields_with_factorised_crossings")
def factorised() -> BuiltStep:
    linear, crossed = table(40, 1, 1), table(40, 4, 2)
    deep = mlp(12, 8, 1)
    weights = [linear, crossed, *deep.trainable_variables]
    optimizer = adam(weights)
    auc = keras.metrics.AUC(num_thresholds=20)

    def step(fields: Any, clicked: Any) -> Any:
        offsets = tf.constant([0, 10, 25])
        with tf.GradientTape() as tape:
            ids = fields + offsets
            vectors = tf.gather(crossed, ids)
            together = tf.reduce_sum(vectors, axis=1) ** 2 - tf.reduce_sum(vectors**2, axis=1)
            logits = tf.reduce_sum(tf.gather(linear, ids), axis=1)
            logits += 0.5 * tf.reduce_sum(together, axis=1, keepdims=True)
            logits += deep(tf.reshape(vectors, [-1, 12]))
            each = tf.nn.sigmoid_cross_entropy_with_logits(labels=clicked[:, None], logits=logits)
            loss = tf.reduce_mean(each)
        optimizer.apply(tape.gradient(loss, weights), weights)
        auc.update_state(clicked[:, None], tf.sigmoid(logits))
        return {"loss": loss, "auc": auc.result()}

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return integers(rng, 10, n, 3), integers(rng, 2, n).astype("float32")

    return BuiltStep(
        step=step, batch=batch, variables=[*weights, *optimizer.variables, *auc.variables]
    )


NUM_EXPERTS = 4


def make_weights() -> tuple[tf.Variable, tf.Variable, tf.Variable]:
    gate = tf.Variable(0.5 * tf.random.stateless_normal([6, NUM_EXPERTS], seed=[1, 1]))
    first = tf.Variable(0.4 * tf.random.stateless_normal([NUM_EXPERTS, 6, 8], seed=[2, 2]))
    second = tf.Variable(0.4 * tf.random.stateless_normal([NUM_EXPERTS, 8, 4], seed=[3, 3]))
    return gate, first, second


@learned("experts/soft_mixture", to_regress(), make_weights)
def soft(gate: Any, first: Any, second: Any, x: Any, y: Any) -> Any:
    shares = tf.nn.softmax(x @ gate)
    hidden = tf.nn.gelu(tf.einsum("bi,eih->beh", x, first))
    outputs = tf.einsum("beh,eho,be->bo", hidden, second, shares)
    importance = tf.reduce_sum(shares, axis=0)
    mean, variance = tf.nn.moments(importance, axes=[0])
    return tf.reduce_mean((y - outputs) ** 2) + 0.1 * variance / (mean**2 + 1e-6)


@learned("experts/two_best_with_balance_and_z_loss", to_regress(), make_weights)
def two_best(gate: Any, first: Any, second: Any, x: Any, y: Any) -> Any:
    logits = x @ gate
    shares = tf.nn.softmax(logits)
    best, index = tf.math.top_k(shares, k=2)
    best /= tf.reduce_sum(best, axis=1, keepdims=True)
    chosen = tf.one_hot(index, NUM_EXPERTS)
    combine = tf.reduce_sum(best[..., None] * chosen, axis=1)
    hidden = tf.nn.gelu(tf.einsum("bi,eih->beh", x, first))
    outputs = tf.einsum("be,beh,eho->bo", combine, hidden, second)
    density = tf.reduce_mean(tf.reduce_sum(chosen, axis=1), axis=0)
    balance = NUM_EXPERTS * tf.reduce_sum(density * tf.reduce_mean(shares, axis=0)) / 2
    z_loss = tf.reduce_mean(tf.reduce_logsumexp(logits, axis=1) ** 2)
    loss = tf.reduce_mean((y - outputs) ** 2) + 0.1 * balance + 0.01 * z_loss
    return {"loss": loss, "balance": balance, "density": density}


@case("experts/capacity_and_einsum_dispatch")
def capacity() -> BuiltStep:
    weights = make_weights()
    gate, first, second = weights
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        size = tf.shape(x)[0]
        slots = tf.maximum(size // NUM_EXPERTS, 1) + 1
        with tf.GradientTape() as tape:
            shares = tf.nn.softmax(x @ gate)
            chosen = tf.one_hot(tf.argmax(shares, axis=1), NUM_EXPERTS)
            place = tf.cumsum(chosen, axis=0, exclusive=True) * chosen
            fits = chosen * tf.cast(place < tf.cast(slots, tf.float32), tf.float32)
            place = tf.cast(tf.reduce_sum(place, axis=1), tf.int32)
            dispatch = fits[:, :, None] * tf.one_hot(place, slots)[:, None]
            combine = dispatch * tf.reduce_sum(shares * fits, axis=1)[:, None, None]
            inputs = tf.einsum("bec,bi->eci", dispatch, x)
            hidden = tf.nn.gelu(tf.einsum("eci,eih->ech", inputs, first))
            outputs = tf.einsum("ech,eho->eco", hidden, second)
            made = tf.einsum("bec,eco->bo", combine, outputs)
            balance = tf.reduce_sum(tf.reduce_mean(chosen, 0) * tf.reduce_mean(shares, 0))
            loss = tf.reduce_mean((y - made) ** 2) + 0.1 * NUM_EXPERTS * balance
        optimizer.apply(tape.gradient(loss, weights), weights)
        dropped = 1.0 - tf.reduce_sum(fits) / tf.cast(size, tf.float32)
        return {"loss": loss, "dropped": dropped}

    return BuiltStep(step=step, batch=to_regress(), variables=[*weights, *optimizer.variables])


@learned("experts/gathered_and_scattered", to_regress(), make_weights)
def gathered(gate: Any, first: Any, second: Any, x: Any, y: Any) -> Any:
    shares = tf.nn.softmax(x @ gate)
    expert = tf.argmax(shares, axis=1, output_type=tf.int32)
    made = tf.zeros_like(y)
    for e in range(NUM_EXPERTS):
        rows = tf.where(expert == e)
        part = tf.gather_nd(x, rows)
        outputs = tf.nn.gelu(part @ first[e]) @ second[e]
        outputs *= tf.gather_nd(shares[:, e], rows)[:, None]
        made = tf.tensor_scatter_nd_add(made, rows, outputs)
    loss = tf.reduce_mean((y - made) ** 2)
    return loss, tf.math.bincount(expert, minlength=NUM_EXPERTS)


@learned("experts/partitioned_and_stitched", to_regress(), make_weights)
def partitioned(gate: Any, first: Any, second: Any, x: Any, y: Any) -> Any:
    shares = tf.nn.softmax(x @ gate)
    expert = tf.argmax(shares, axis=1, output_type=tf.int32)
    rows = tf.dynamic_partition(tf.range(tf.shape(x)[0]), expert, NUM_EXPERTS)
    parts = tf.dynamic_partition(x, expert, NUM_EXPERTS)
    made = [tf.nn.gelu(parts[e] @ first[e]) @ second[e] for e in range(NUM_EXPERTS)]
    outputs = tf.dynamic_stitch(rows, made)
    outputs *= tf.reduce_max(shares, axis=1, keepdims=True)
    return tf.reduce_mean((y - outputs) ** 2)


@learned("experts/samples_chosen_by_experts", to_regress(), make_weights)
def expert_choice(gate: Any, first: Any, second: Any, x: Any, y: Any) -> Any:
    size = tf.shape(x)[0]
    shares = tf.nn.softmax(x @ gate)
    best, rows = tf.math.top_k(tf.transpose(shares), k=tf.maximum(size // 3, 1))
    hidden = tf.nn.gelu(tf.einsum("eci,eih->ech", tf.gather(x, rows), first))
    outputs = tf.einsum("ech,eho,ec->eco", hidden, second, best)
    made = tf.scatter_nd(tf.reshape(rows, [-1, 1]), tf.reshape(outputs, [-1, 4]), tf.shape(y))
    return tf.reduce_mean((y - made) ** 2)


@case("experts/bias_that_balances_the_load")
def bias_of_load() -> BuiltStep:
    weights = make_weights()
    gate, first, second = weights
    bias = tf.Variable(tf.zeros([NUM_EXPERTS]), trainable=False)
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            affinity = tf.sigmoid(x @ gate)
            _, index = tf.math.top_k(affinity + bias, k=2)
            best = tf.gather(affinity, index, batch_dims=1)
            best /= tf.reduce_sum(best, axis=1, keepdims=True)
            hidden = tf.nn.gelu(tf.einsum("bi,bkih->bkh", x, tf.gather(first, index)))
            outputs = tf.einsum("bkh,bkho,bk->bo", hidden, tf.gather(second, index), best)
            loss = tf.reduce_mean((y - outputs) ** 2)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]
        optimizer.apply(gradients, weights)
        load = tf.reduce_sum(tf.one_hot(index, NUM_EXPERTS), axis=[0, 1])
        bias.assign_add(0.05 * tf.sign(tf.reduce_mean(load) - load))
        return loss, load

    return BuiltStep(
        step=step, batch=to_regress(), variables=[*weights, bias, *optimizer.variables]
    )


ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def two_views(rng: Any, n: int) -> tuple[Any, ...]:
    x = normal(rng, n, 6)
    return x + 0.2 * normal(rng, n, 6), x + 0.2 * normal(rng, n, 6)


def momentum_contrast(name: str) -> Callable[[Loss], Loss]:
    """Register a step whose negatives come out of a queue, which a function renews."""

    def add(enqueue: Loss) -> Loss:
        @case(name)
        def build() -> BuiltStep:
            query, key = mlp(6, 10, 4), mlp(6, 10, 4)
            key.set_weights(query.get_weights())
            first_keys = tf.random.stateless_normal([40, 4], [1, 2])
            queue = tf.Variable(tf.math.l2_normalize(first_keys, axis=1))
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

            variables = state(query, key, optimizer, queue, pointer)
            return BuiltStep(step=step, batch=two_views, variables=variables)

        return enqueue

    return add


@momentum_contrast("queues/moco_by_concat")
def moco_by_concat(queue: Any, pointer: Any, keys: Any) -> None:
    queue.assign(tf.concat([keys, queue], axis=0)[:40])


@momentum_contrast("queues/moco_by_roll")
def moco_by_roll(queue: Any, pointer: Any, keys: Any) -> None:
    size = tf.shape(keys)[0]
    rolled = tf.roll(queue, shift=size, axis=0)
    queue.assign(tf.concat([keys, rolled[size:]], axis=0))


@momentum_contrast("queues/moco_by_scatter_at_a_pointer")
def moco_by_scatter(queue: Any, pointer: Any, keys: Any) -> None:
    rows = (pointer + tf.range(tf.shape(keys)[0])) % 40
    queue.scatter_nd_update(rows[:, None], keys)
    pointer.assign((pointer + tf.shape(keys)[0]) % 40)


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


@written(
    "queues/class_means_moved_by_segments",
    to_classify(),
    lambda: (
        *trained(mlp(6, 10, 4)),
        tf.Variable(tf.random.stateless_normal([5, 4], [3, 1]), trainable=False),
    ),
)
def class_means(body: Any, optimizer: Any, means: Any, x: Any, y: Any) -> Any:
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


@case("queues/inputs_normalised_by_running_statistics")
def running_statistics() -> BuiltStep:
    model = mlp(6, 10, 5)
    mean, variance = tf.Variable(tf.zeros([6])), tf.Variable(tf.ones([6]))

    def loss_of(x: Any, y: Any) -> Any:
        now_mean, now_variance = tf.nn.moments(x, axes=[0])
        mean.assign(0.9 * mean + 0.1 * now_mean)
        variance.assign(0.9 * variance + 0.1 * now_variance)
        x = tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)
        return ENTROPY(y, model(x))

    return learn(loss_of, model, to_classify(), extra=[mean, variance])


@written(
    "queues/clusters_of_minibatches",
    of_shape(6),
    lambda: (tf.Variable(tf.random.stateless_normal([4, 6], [5, 1])), tf.Variable(tf.zeros([4]))),
)
def clusters(centers: Any, counts: Any, x: Any) -> Any:
    far = tf.reduce_sum((x[:, None] - centers[None]) ** 2, axis=2)
    nearest = tf.argmin(far, axis=1, output_type=tf.int32)
    chosen = tf.one_hot(nearest, 4)
    number = tf.reduce_sum(chosen, axis=0)
    counts.assign_add(number)
    sums = tf.matmul(chosen, x, transpose_a=True) - number[:, None] * centers
    centers.assign_add(sums / tf.maximum(counts, 1.0)[:, None])
    return {"inertia": tf.reduce_sum(tf.reduce_min(far, axis=1)), "labels": nearest}


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
