"""Steps that are traced for batches of one size run on all devices, and give the same numbers.

They ask for the size (``x.shape[0]``), or draw from kernels with a seed, of which TensorFlow makes
new ones for each size of batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener

SHAPES = {"convolutions": (9, 9, 3), "lstm": (5, 6), "gru": (5, 6), "attention": (5, 6)}
SIZES = (8, 8, 5)
Step = Callable[[Any], Any]


def trained(model: keras.Model, rate: float = 0.01) -> Any:
    """Return a function that trains a model by a loss of it."""
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    optimizer.build(model.trainable_variables)

    def update(loss: Any, tape: Any) -> None:
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    return update


def with_dropout(*stack: Any) -> tuple[Step, list[Any]]:
    """Return a step whose dropout is drawn by a kernel."""
    model = keras.Sequential([*stack, layers.Dense(1)])
    update = trained(model)

    def step(x: Any) -> Any:
        x = tf.nn.dropout(x, 0.2)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        update(loss, tape)
        return loss

    return step, model.variables


def convolutions() -> tuple[Step, list[Any]]:
    normalized = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.MaxPooling2D()]
    return with_dropout(keras.Input(SHAPES["convolutions"]), *normalized, layers.Flatten())


def lstm() -> tuple[Step, list[Any]]:
    return with_dropout(
        keras.Input(SHAPES["lstm"]), layers.LSTM(7, return_sequences=True), layers.LSTM(3)
    )


def gru() -> tuple[Step, list[Any]]:
    return with_dropout(keras.Input(SHAPES["gru"]), layers.GRU(7))


def attention() -> tuple[Step, list[Any]]:
    inputs = keras.Input(SHAPES["attention"])
    found = layers.MultiHeadAttention(2, 3)(inputs, inputs)
    found = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(found + inputs))
    return with_dropout(inputs, keras.Model(inputs, found))


def divided_by_the_size() -> tuple[Step, list[Any]]:
    model = keras.Sequential([keras.Input((20,)), layers.Dense(8, "tanh"), layers.Dense(8)])
    update = trained(model)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x) - x[:, :8]) ** 2) / (8 * x.shape[0])
        update(loss, tape)
        return loss

    return step, model.variables


def adversaries() -> tuple[Step, list[Any]]:
    maker = keras.Sequential([keras.Input((5,)), layers.Dense(9, "relu"), layers.Dense(20)])
    judge = keras.Sequential([keras.Input((20,)), layers.Dense(9), layers.LeakyReLU()])
    judge.add(layers.Dense(1))
    train_maker, train_judge = trained(maker), trained(judge)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(x: Any) -> Any:
        noise = tf.random.normal([x.shape[0], 5])
        with tf.GradientTape() as of_maker, tf.GradientTape() as of_judge:
            made = maker(noise, training=True)
            real, fake = judge(x, training=True), judge(made, training=True)
            fooled = loss_of(tf.ones_like(fake), fake)
            judged = loss_of(tf.ones_like(real), real) + loss_of(tf.zeros_like(fake), fake)
        train_maker(fooled, of_maker)
        train_judge(judged, of_judge)
        return fooled, judged

    return step, [*maker.variables, *judge.variables]


def gradient_penalty() -> tuple[Step, list[Any]]:
    judge = keras.Sequential([keras.Input((20,)), layers.Dense(9), layers.LeakyReLU()])
    judge.add(layers.Dense(1))
    update = trained(judge)

    def step(x: Any) -> Any:
        count = x.shape[0]
        part, made = tf.random.uniform([count, 1]), tf.random.normal([count, 20])
        between = x + part * (made - x)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                tape.watch(between)
                found = judge(between, training=True)
            lengths = tf.norm(tape.gradient(found, between), axis=1)
            loss = tf.reduce_mean(judge(made)) - tf.reduce_mean(judge(x))
            loss += 10 * tf.reduce_mean((lengths - 1.0) ** 2)
        update(loss, outer)
        return loss

    return step, judge.variables


def diffusion() -> tuple[Step, list[Any]]:
    model = keras.Sequential([keras.Input((21,)), layers.Dense(16, "swish"), layers.Dense(20)])
    update, schedule = trained(model), np.linspace(1, 0, 100).astype(np.float32)

    def step(x: Any) -> Any:
        times = tf.random.uniform([x.shape[0]], 0, 100, tf.int32)
        kept = tf.gather(tf.constant(schedule), times)[:, None]
        noise = tf.random.normal(x.shape)
        mixed = tf.sqrt(kept) * x + tf.sqrt(1 - kept) * noise
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(tf.concat([mixed, kept], 1)) - noise) ** 2)
        update(loss, tape)
        return loss

    return step, model.variables


def autoencoder() -> tuple[Step, list[Any]]:
    inputs = keras.Input((20,))
    hidden = layers.Dense(9, "relu")(inputs)
    encoder = keras.Model(inputs, [layers.Dense(4)(hidden), layers.Dense(4)(hidden)])
    stack = [layers.Dense(9, "relu"), layers.BatchNormalization(), layers.Dense(20)]
    decoder = keras.Sequential([keras.Input((4,)), *stack])
    train_encoder, train_decoder = trained(encoder), trained(decoder)

    def step(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            mean, log_variance = encoder(x, training=True)
            drawn = mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean))
            loss = tf.reduce_mean((decoder(drawn, training=True) - x) ** 2)
            loss += 0.1 * tf.reduce_mean(mean**2 + tf.exp(log_variance) - log_variance)
        train_encoder(loss, tape)
        train_decoder(loss, tape)
        return loss

    return step, [*encoder.variables, *decoder.variables]


STEPS: dict[str, Callable[[], tuple[Step, list[Any]]]] = {
    each.__name__: each
    for each in (
        *(convolutions, lstm, gru, attention, divided_by_the_size),
        *(adversaries, gradient_penalty, diffusion, autoencoder),
    )
}


def run(name: str, wrap: Callable[[Step], Step]) -> tuple[list[np.ndarray], Step]:
    """Return what a step gives in some batches, and its variables after them."""
    keras.utils.set_random_seed(7)
    written, variables = STEPS[name]()
    step, rng = wrap(written), np.random.default_rng(3)
    given: list[Any] = []
    for size in SIZES:
        x = tf.constant(rng.random((size, *SHAPES.get(name, (20,))), np.float32))
        given += tf.nest.flatten(step(x))
    return [*map(np.asarray, given), *(np.asarray(v) for v in variables)], step


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", STEPS)
def test_nothing_is_gathered(name: str) -> None:
    expected, _ = run(name, tf.function)
    devices = ["cpu:0", "cpu:1", "cpu:2"]
    actual, step = run(
        name, lambda step: evener.distribute(step, devices=devices, shares=[5, 3, 1], verify=False)
    )
    assert not step.report().gathered  # pyright: ignore[reportFunctionMemberAccess]
    for found, wanted in zip(actual, expected, strict=True):
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * scale)
