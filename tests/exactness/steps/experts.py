"""Mixtures of experts: gates, capacity, dispatch, and losses that balance the load."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .case import BuiltStep, case, sgd, to_regress

NUM_EXPERTS = 4


def make_weights() -> tuple[tf.Variable, tf.Variable, tf.Variable]:
    """Return a gate and two layers of every expert."""
    gate = tf.Variable(0.5 * tf.random.stateless_normal([6, NUM_EXPERTS], seed=[1, 1]))
    first = tf.Variable(0.4 * tf.random.stateless_normal([NUM_EXPERTS, 6, 8], seed=[2, 2]))
    second = tf.Variable(0.4 * tf.random.stateless_normal([NUM_EXPERTS, 8, 4], seed=[3, 3]))
    return gate, first, second


@case("experts/soft_mixture")
def soft() -> BuiltStep:
    weights = make_weights()
    gate, first, second = weights
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            shares = tf.nn.softmax(x @ gate)
            hidden = tf.nn.gelu(tf.einsum("bi,eih->beh", x, first))
            outputs = tf.einsum("beh,eho,be->bo", hidden, second, shares)
            importance = tf.reduce_sum(shares, axis=0)
            mean, variance = tf.nn.moments(importance, axes=[0])
            loss = tf.reduce_mean((y - outputs) ** 2) + 0.1 * variance / (mean**2 + 1e-6)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=[*weights, *optimizer.variables])


@case("experts/two_best_with_balance_and_z_loss")
def two_best() -> BuiltStep:
    weights = make_weights()
    gate, first, second = weights
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
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
        optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss, "balance": balance, "density": density}

    return BuiltStep(step=step, batch=to_regress(), variables=[*weights, *optimizer.variables])


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


@case("experts/gathered_and_scattered")
def gathered() -> BuiltStep:
    weights = make_weights()
    gate, first, second = weights
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
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
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss, tf.math.bincount(expert, minlength=NUM_EXPERTS)

    return BuiltStep(step=step, batch=to_regress(), variables=[*weights, *optimizer.variables])


@case("experts/partitioned_and_stitched")
def partitioned() -> BuiltStep:
    weights = make_weights()
    gate, first, second = weights
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            shares = tf.nn.softmax(x @ gate)
            expert = tf.argmax(shares, axis=1, output_type=tf.int32)
            rows = tf.dynamic_partition(tf.range(tf.shape(x)[0]), expert, NUM_EXPERTS)
            parts = tf.dynamic_partition(x, expert, NUM_EXPERTS)
            made = [tf.nn.gelu(parts[e] @ first[e]) @ second[e] for e in range(NUM_EXPERTS)]
            outputs = tf.dynamic_stitch(rows, made)
            outputs *= tf.reduce_max(shares, axis=1, keepdims=True)
            loss = tf.reduce_mean((y - outputs) ** 2)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=[*weights, *optimizer.variables])


@case("experts/samples_chosen_by_experts")
def expert_choice() -> BuiltStep:
    weights = make_weights()
    gate, first, second = weights
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        size = tf.shape(x)[0]
        with tf.GradientTape() as tape:
            shares = tf.nn.softmax(x @ gate)
            best, rows = tf.math.top_k(tf.transpose(shares), k=tf.maximum(size // 3, 1))
            hidden = tf.nn.gelu(tf.einsum("eci,eih->ech", tf.gather(x, rows), first))
            outputs = tf.einsum("ech,eho,ec->eco", hidden, second, best)
            made = tf.scatter_nd(
                tf.reshape(rows, [-1, 1]), tf.reshape(outputs, [-1, 4]), tf.shape(y)
            )
            loss = tf.reduce_mean((y - made) ** 2)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=[*weights, *optimizer.variables])


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
