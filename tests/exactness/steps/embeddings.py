"""Tables looked up by the batch: sparse gradients, in-batch negatives, sampled losses."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .case import Batch, BuiltStep, adam, case, integers, learn, mlp, normal, sgd


def pairs(first: int = 20, second: int = 15) -> Batch:
    """Return what makes numbers of users, of things, and ratings."""

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return integers(rng, first, n), integers(rng, second, n), normal(rng, n)

    return batch


def table(rows: int, width: int, seed: int) -> tf.Variable:
    """Return a table of random rows."""
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


@case("embeddings/sparse_update_by_hand")
def sparse_by_hand() -> BuiltStep:
    users, things = table(20, 4, 1), table(15, 4, 2)

    def step(user: Any, thing: Any, rating: Any) -> Any:
        with tf.GradientTape() as tape:
            guess = tf.reduce_sum(tf.gather(users, user) * tf.gather(things, thing), axis=1)
            loss = tf.reduce_sum((rating - guess) ** 2)
        for variable, g in zip([users, things], tape.gradient(loss, [users, things]), strict=True):
            variable.scatter_sub(tf.IndexedSlices(0.05 * g.values, g.indices))
        return loss

    return BuiltStep(step=step, batch=pairs(), variables=[users, things])


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

    return learn(loss_of, model, pairs(), optimizer=adam(model.trainable_variables))


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


@case("embeddings/words_with_negatives_given")
def words() -> BuiltStep:
    centers, contexts = table(30, 5, 1), table(30, 5, 2)
    optimizer = sgd([centers, contexts], 0.5)

    def step(center: Any, context: Any, negatives: Any) -> Any:
        with tf.GradientTape() as tape:
            c = tf.gather(centers, center)
            others = tf.gather(contexts, tf.concat([context[:, None], negatives], axis=1))
            logits = tf.einsum("bf,bkf->bk", c, others)
            labels = tf.concat([tf.ones_like(logits[:, :1]), tf.zeros_like(logits[:, 1:])], axis=1)
            each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(tf.reduce_sum(each, axis=1))
        optimizer.apply(tape.gradient(loss, [centers, contexts]), [centers, contexts])
        return loss

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return integers(rng, 30, n), integers(rng, 30, n), integers(rng, 30, n, 4)

    return BuiltStep(step=step, batch=batch, variables=[centers, contexts, *optimizer.variables])


@case("embeddings/sampled_softmax_with_given_candidates")
def sampled_softmax() -> BuiltStep:
    body, output = mlp(6, 8, 5), table(30, 5, 2)
    bias = tf.Variable(tf.zeros([30]))
    weights = [*body.trainable_variables, output, bias]
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
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
            loss = tf.reduce_mean(each)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6), integers(rng, 30, n)

    return BuiltStep(step=step, batch=batch, variables=[*weights, *optimizer.variables])


@case("embeddings/rows_between_writes")
def between_writes() -> BuiltStep:
    """Every lookup gives the rows of its moment."""
    rows = table(20, 4, 1)

    def step(ids: Any, y: Any) -> Any:
        before = tf.nn.embedding_lookup(rows, ids)
        rows.scatter_sub(tf.IndexedSlices(0.1 * (before - y), ids))
        between, total = tf.gather_nd(rows, ids[:, None]), tf.zeros([4])
        for shift in tf.range(3):
            total += tf.reduce_sum(tf.gather(rows, (ids + shift) % 20), axis=0)
        rows.assign(0.9 * rows)
        return before, between, total, tf.gather(rows, ids)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return integers(rng, 20, n), normal(rng, n, 4)

    return BuiltStep(step=step, batch=batch, variables=[rows])


@case("embeddings/bags_summed_by_segments")
def bags() -> BuiltStep:
    rows = table(20, 4, 1)
    head = tf.Variable(tf.random.stateless_normal([4], seed=[2, 2]))
    optimizer = sgd([rows, head])

    def step(ids: Any, y: Any) -> Any:
        size = tf.shape(ids)[0]
        with tf.GradientTape() as tape:
            flat = tf.gather(rows, tf.reshape(ids, [-1]))
            owner = tf.repeat(tf.range(size), 3)
            bag = tf.math.segment_mean(flat, owner)
            loss = tf.reduce_mean((y - tf.linalg.matvec(tf.tanh(bag), head)) ** 2)
        optimizer.apply(tape.gradient(loss, [rows, head]), [rows, head])
        return loss

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return integers(rng, 20, n, 3), normal(rng, n)

    return BuiltStep(step=step, batch=batch, variables=[rows, head, *optimizer.variables])


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
