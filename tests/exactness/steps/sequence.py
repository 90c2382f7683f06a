"""Recurrence, loops over time, attention and alignment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from .case import BuiltStep, adam, case, integers, learn, normal, sgd, to_classify

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sequences(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    """Return sequences of seven steps with labels out of five."""
    return normal(rng, n, 7, 4), integers(rng, 5, n)


def words(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    """Return sequences of unlike lengths, padded with zeros, with labels out of five."""
    tokens = 1 + integers(rng, 11, n, 7)
    lengths = rng.integers(2, 8, size=(n, 1))
    return np.where(np.arange(7)[None] < lengths, tokens, 0).astype("int32"), integers(rng, 5, n)


def classifier(*middle: Any) -> Any:
    """Return a classifier of sequences."""
    return keras.Sequential([keras.Input((7, 4)), *middle, layers.Dense(5)])


@case("sequence/lstm")
def lstm() -> BuiltStep:
    model = classifier(layers.LSTM(6))
    return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, sequences)


@case("sequence/gru_with_recurrent_dropout")
def gru() -> BuiltStep:
    model = classifier(layers.GRU(6, dropout=0.2, recurrent_dropout=0.2, seed=2))
    return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, sequences)


@case("sequence/stacked_cells")
def stacked_cells() -> BuiltStep:
    model = classifier(layers.RNN([layers.LSTMCell(5), layers.GRUCell(4)]))
    return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, sequences)


@case("sequence/bidirectional_with_mask")
def bidirectional() -> BuiltStep:
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(12, 5, mask_zero=True),
            layers.Bidirectional(layers.LSTM(4)),
            layers.Dense(5),
        ]
    )
    return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, words)


@case("sequence/state_kept_from_batch_to_batch")
def cell_by_hand() -> BuiltStep:
    cell, head = layers.GRUCell(6), layers.Dense(4)
    cell.build((None, 4))
    head.build((None, 6))
    weights = [*cell.trainable_variables, *head.trainable_variables]
    start = tf.Variable(tf.zeros([1, 6]))
    optimizer = sgd(weights)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.repeat(start, tf.shape(x)[0], axis=0)
            loss = 0.0
            for time in range(x.shape[1] - 1):
                output, hidden = cell(x[:, time], hidden)
                loss += tf.reduce_mean(tf.square(head(output) - x[:, time + 1]))
            loss = loss / (x.shape[1] - 1)
        optimizer.apply(tape.gradient(loss, weights), weights)
        start.assign(tf.reduce_mean(hidden, axis=0, keepdims=True))
        return loss, hidden

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (normal(rng, n, 7, 4),),
        variables=[*weights, *optimizer.variables, start],
    )


@case("sequence/while_loop_over_time")
def while_loop() -> BuiltStep:
    w = tf.Variable(0.5 * tf.random.stateless_normal([10, 6], seed=[1, 2]))
    head = tf.Variable(tf.random.stateless_normal([6, 5], seed=[3, 4]))
    optimizer = sgd([w, head])

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            by_time = tf.transpose(x, [1, 0, 2])

            def body(time: Any, hidden: Any) -> Any:
                both = tf.concat([by_time[time], hidden], axis=1)
                return time + 1, tf.tanh(both @ w)

            _, hidden = tf.while_loop(
                lambda time, _: time < tf.shape(by_time)[0],
                body,
                (tf.constant(0), tf.zeros([tf.shape(x)[0], 6])),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 6])),
            )
            loss = ENTROPY(y, hidden @ head)
        optimizer.apply(tape.gradient(loss, [w, head]), [w, head])
        return loss

    return BuiltStep(step=step, batch=sequences, variables=[w, head, *optimizer.variables])


@case("sequence/array_written_in_a_loop")
def tensor_array() -> BuiltStep:
    w = tf.Variable(0.5 * tf.random.stateless_normal([4, 4], seed=[1, 2]))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            by_time = tf.transpose(x, [1, 0, 2])
            outputs = tf.TensorArray(tf.float32, size=7)
            hidden = tf.zeros_like(by_time[0])
            for time in tf.range(7):
                hidden = tf.tanh(by_time[time] + hidden @ w)
                outputs = outputs.write(time, hidden)
            made = tf.transpose(outputs.stack(), [1, 0, 2])
            loss = tf.reduce_mean(tf.square(made[:, :-1] - x[:, 1:]))
        w.assign_sub(0.3 * tape.gradient(loss, w))
        return {"loss": loss, "outputs": made}

    return BuiltStep(step=step, batch=lambda rng, n: (normal(rng, n, 7, 4),), variables=[w])


def scanned(loss_of: Callable[[Any, Any], Any]) -> BuiltStep:
    """Return a step with a linear recurrence by `tf.scan`, and a loss of its states and ``x``."""
    rate = tf.Variable(tf.random.stateless_normal([4], seed=[1, 2]))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            decay = tf.sigmoid(rate)
            states = tf.scan(
                lambda s, now: decay * s + (1 - decay) * now, tf.transpose(x, [1, 0, 2])
            )
            loss = loss_of(states, x)
        rate.assign_sub(tape.gradient(loss, rate))
        return loss

    return BuiltStep(step=step, batch=lambda rng, n: (normal(rng, n, 7, 4),), variables=[rate])


@case("sequence/scan_of_a_linear_model")
def scan() -> BuiltStep:
    def loss_of(states: Any, x: Any) -> Any:
        return tf.reduce_mean(tf.square(states[:-1] - tf.transpose(x, [1, 0, 2])[1:]))

    return scanned(loss_of)


@case("sequence/scan_with_the_size_of_the_batch")
def scan_with_size() -> BuiltStep:
    return scanned(lambda states, x: tf.reduce_sum(tf.square(states)) / x.shape[0])


@case("sequence/lstm_with_the_size_of_the_batch")
def lstm_with_size() -> BuiltStep:
    model = classifier(layers.LSTM(6, return_sequences=True), layers.GRU(4))
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    return learn(lambda x, y: losses(y, model(x, training=True)) / x.shape[0], model, sequences)


@case("sequence/attention_between_encoder_and_decoder")
def attention() -> BuiltStep:
    encoder, decoder = layers.GRU(6, return_sequences=True, return_state=True), layers.GRUCell(6)
    embed, attend = layers.Embedding(10, 5), layers.AdditiveAttention()
    head = layers.Dense(10)
    parts = (encoder, decoder, embed, attend, head)
    encoder.build((None, 7, 4))
    decoder.build((None, 11))
    embed.build((None,))
    attend.build([(None, 1, 6), (None, 7, 6)])
    head.build((None, 6))
    weights = [v for part in parts for v in part.trainable_variables]
    optimizer = adam(weights)

    def step(x: Any, y: Any) -> Any:
        loss = 0.0
        with tf.GradientTape() as tape:
            memory, hidden = encoder(x)
            for time in range(2):
                context = attend([hidden[:, None], memory])[:, 0]
                inputs = tf.concat([context, embed(y[:, time])], axis=1)
                output, hidden = decoder(inputs, hidden)
                mask = tf.cast(y[:, time + 1] != 0, tf.float32)
                each = keras.losses.sparse_categorical_crossentropy(
                    y[:, time + 1], head(output), from_logits=True
                )
                loss += tf.reduce_mean(each * mask)
            batch_loss = loss / 3.0
        optimizer.apply(tape.gradient(loss, weights), weights)
        return batch_loss

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (normal(rng, n, 7, 4), integers(rng, 10, n, 3)),
        variables=[*weights, *optimizer.variables],
    )


@case("sequence/decoder_with_lookups_in_loops")
def decoder_by_hand() -> BuiltStep:
    """An encoder and a decoder with attention, written by hand: rows of tables in every round."""
    shapes = {"read": (11, 6), "written": (11, 6), "encode": (14, 8), "ask": (8, 8)}
    shapes |= {"decode": (22, 8), "guess": (8, 11)}
    weights = {
        name: tf.Variable(0.4 * tf.random.stateless_normal(shape, seed=[seed, 1]), name=name)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    optimizer = adam(list(weights.values()))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden, states = tf.zeros([tf.shape(x)[0], 8]), tf.TensorArray(tf.float32, 4)
            for time in tf.range(4):
                row = tf.nn.embedding_lookup(weights["read"], x[:, time])
                hidden = tf.tanh(tf.concat([row, hidden], 1) @ weights["encode"])
                states = states.write(time, hidden)
            memory = tf.transpose(states.stack(), [1, 0, 2])
            total, time = tf.constant(0.0), tf.constant(1)
            while time < 5:
                row = tf.gather(weights["written"], y[:, time - 1])
                scores = tf.einsum("bsh,bh->bs", memory, hidden @ weights["ask"])
                seen = tf.einsum("bs,bsh->bh", tf.nn.softmax(scores), memory)
                hidden = tf.tanh(tf.concat([row, hidden, seen], 1) @ weights["decode"])
                total += ENTROPY(y[:, time], hidden @ weights["guess"])
                total += 0.01 * tf.nn.l2_loss(weights["guess"])
                time += 1
        of_all = tape.gradient(total, list(weights.values()))
        optimizer.apply(of_all, list(weights.values()))
        return total

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (integers(rng, 11, n, 4), integers(rng, 11, n, 5)),
        variables=[*weights.values(), *optimizer.variables],
    )


@case("sequence/ctc_of_tf_nn")
def ctc() -> BuiltStep:
    model = keras.Sequential(
        [keras.Input((7, 4)), layers.GRU(6, return_sequences=True), layers.Dense(6)]
    )

    def loss_of(x: Any, y: Any, label_length: Any, logit_length: Any) -> Any:
        each = tf.nn.ctc_loss(
            y, model(x), label_length, logit_length, logits_time_major=False, blank_index=-1
        )
        return tf.reduce_mean(each)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        lengths = rng.integers(1, 4, size=n).astype("int32")
        return normal(rng, n, 7, 4), integers(rng, 4, n, 3), lengths, np.full([n], 7, "int32")

    return learn(loss_of, model, batch)


@case("sequence/ctc_of_keras")
def keras_ctc() -> BuiltStep:
    model = classifier(layers.LSTM(6, return_sequences=True))
    loss = keras.losses.CTC()
    return learn(
        lambda x, y: 0.1 * loss(y, model(x)),
        model,
        lambda rng, n: (normal(rng, n, 7, 4), 1 + integers(rng, 4, n, 3)),
    )


@case("sequence/chain_of_tags_by_forward_algorithm")
def crf() -> BuiltStep:
    emit = keras.Sequential([keras.Input((7, 4)), layers.Dense(5)])
    moves = tf.Variable(0.1 * tf.random.stateless_normal([5, 5], seed=[1, 2]))
    weights = [*emit.trainable_variables, moves]
    optimizer = sgd(weights)

    def step(x: Any, tags: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = emit(x)
            alpha = scores[:, 0]
            for time in range(1, 7):
                alpha = (
                    tf.reduce_logsumexp(alpha[:, :, None] + moves[None], axis=1) + scores[:, time]
                )
            total = tf.reduce_logsumexp(alpha, axis=1)
            chosen = tf.reduce_sum(tf.gather(scores, tags, axis=2, batch_dims=2), axis=1)
            steps = tf.stack([tags[:, :-1], tags[:, 1:]], axis=2)
            chosen += tf.reduce_sum(tf.gather_nd(moves, steps), axis=1)
            loss = tf.reduce_mean(total - chosen)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (normal(rng, n, 7, 4), integers(rng, 5, n, 7)),
        variables=[*weights, *optimizer.variables],
    )


@case("sequence/best_beams")
def beams() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 5], seed=[1, 2]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = ENTROPY(y, x @ w)
        w.assign_sub(0.2 * tape.gradient(loss, w))
        logs = tf.nn.log_softmax(x @ w)
        scores, tokens = tf.math.top_k(logs, k=2)
        paths = tokens[:, :, None]
        for decay in (0.7, 0.4):
            every = scores[:, :, None] + tf.gather(logs[:, None], [0, 0], axis=1) * decay
            scores, flat = tf.math.top_k(tf.reshape(every, [-1, 10]), k=2)
            before = tf.gather(paths, flat // 5, batch_dims=1)
            paths = tf.concat([before, (flat % 5)[:, :, None]], axis=2)
        return {"paths": paths, "scores": scores}

    return BuiltStep(step=step, batch=to_classify(), variables=[w])
