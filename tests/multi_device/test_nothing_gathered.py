"""Training steps of the usual models compute everything in parts; what is gathered is told."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from rich.console import Console

import evener
from evener.auditing import Audit, print_audit
from evener.graph.ops.registry import Trait, has_trait
from evener.graph.rewrites import LOOPS
from exactness.models import sequential
from exactness.steps.case import CASES
from exactness.steps.runs import check, train

Made = tuple[keras.Model, Callable[[np.random.Generator, int], tuple[Any, Any]]]


CROSS_ENTROPY = "sparse_categorical_crossentropy"


def images(size: int, num_classes: int) -> Callable[[np.random.Generator, int], tuple[Any, Any]]:
    return lambda rng, n: (
        rng.random((n, size, size, 3), dtype="float32"),
        rng.integers(0, num_classes, n),
    )


def tokens(length: int, num_words: int) -> Callable[[np.random.Generator, int], tuple[Any, Any]]:
    return lambda rng, n: (
        rng.integers(0, num_words, (n, length)),
        rng.integers(0, num_words, (n, length)),
    )


def mlp() -> Made:
    model = sequential((8,), layers.Dense(16, "gelu"), layers.LayerNormalization(), layers.Dense(3))
    model.compile("sgd", "mse", metrics=["mae"])
    return model, lambda rng, n: (
        rng.random((n, 8), dtype="float32"),
        rng.random((n, 3), dtype="float32"),
    )


def cnn() -> Made:
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            # As in ResNet50; its gradient is a slice, by sizes that are cut out of a matrix.
            layers.ZeroPadding2D(1),
            layers.Conv2D(8, 3, strides=2),
            layers.MaxPooling2D(),
            layers.Dropout(0.2),
            layers.Flatten(),
            layers.Dense(5, "softmax"),
        ]
    )
    model.compile("sgd", CROSS_ENTROPY, metrics=["accuracy"])
    return model, images(12, 5)


def recurrent(layer: Any) -> Made:
    model = sequential((7, 4), layer(8, return_sequences=True), layer(6), layers.Dense(1))
    model.compile("sgd", "mse")
    return model, lambda rng, n: (
        rng.random((n, 7, 4), dtype="float32"),
        rng.random((n, 1), dtype="float32"),
    )


def transformer() -> Made:
    inputs = keras.Input((10,), dtype="int32")
    embed = layers.Embedding(40, 16, mask_zero=True)
    x = embed(inputs)
    for _ in range(2):
        attended = layers.MultiHeadAttention(2, 8, dropout=0.1)(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(x + attended)
        x = layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(32, "gelu")(x)))
    logits = layers.Lambda(
        lambda both: keras.ops.matmul(both, keras.ops.transpose(embed.embeddings)),
        output_shape=(10, 40),
    )(x)
    model = keras.Model(inputs, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, global_clipnorm=0.5), loss, metrics=["accuracy"])
    return model, tokens(10, 40)


def u_net() -> Made:
    inputs = keras.Input((16, 16, 3))
    skips, x = [], inputs
    for width in (4, 8):
        x = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x))
        skips.append(x)
        x = layers.MaxPooling2D()(layers.Activation("gelu")(x))
    for width, skip in zip((8, 4), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(width, 3, strides=2, padding="same")(x)
        x = layers.Conv2D(width, 3, padding="same")(layers.Concatenate()([x, skip]))
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
    model.compile("sgd", "binary_crossentropy")
    return model, lambda rng, n: (
        rng.random((n, 16, 16, 3), dtype="float32"),
        rng.integers(0, 2, (n, 16, 16, 1)).astype("float32"),
    )


def vit() -> Made:
    inputs = keras.Input((12, 12, 3))
    x = layers.Conv2D(16, 4, strides=4)(inputs)
    x = layers.Reshape((9, 16))(x)
    x = x + layers.Embedding(9, 16)(np.arange(9))
    x = x + layers.MultiHeadAttention(2, 8)(layers.LayerNormalization()(x), x)
    x = layers.GlobalAveragePooling1D()(layers.Dense(16, "gelu")(x))
    model = keras.Model(inputs, layers.Dense(5, "softmax")(x))
    model.compile("sgd", CROSS_ENTROPY, metrics=["accuracy"])
    return model, images(12, 5)


def two_inputs_and_outputs() -> Made:
    first, second = keras.Input((6,), name="one"), keras.Input((4,), name="other")
    shared = layers.Dense(8, "tanh")(layers.Concatenate()([first, second]))
    outputs = {"a": layers.Dense(1, name="a")(shared), "b": layers.Dense(3, name="b")(shared)}
    model = keras.Model([first, second], outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 1.0, "b": 0.3})
    return model, lambda rng, n: (
        [rng.random((n, 6), dtype="float32"), rng.random((n, 4), dtype="float32")],
        {"a": rng.random((n, 1), dtype="float32"), "b": rng.random((n, 3), dtype="float32")},
    )


def masked_words() -> Made:
    """Return a language model that predicts some of its words, as BERT does in its training."""
    words, places = keras.Input((10,), dtype="int32"), keras.Input((3,), dtype="int32")
    x = layers.Embedding(40, 16)(words)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    x = keras.ops.take_along_axis(x, keras.ops.expand_dims(places, -1), axis=1)
    model = keras.Model([words, places], layers.Dense(40)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, global_clipnorm=0.5), loss)
    return model, lambda rng, n: (
        [rng.integers(0, 40, (n, 10)), rng.integers(0, 10, (n, 3))],
        rng.integers(0, 40, (n, 3)),
    )


MODELS: dict[str, Callable[[], Made]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lstm": lambda: recurrent(layers.LSTM),
    "gru": lambda: recurrent(layers.GRU),
    "transformer": transformer,
    "u_net": u_net,
    "vit": vit,
    "two_inputs_and_outputs": two_inputs_and_outputs,
    "masked_words": masked_words,
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_gathered(name: str) -> None:
    keras.utils.set_random_seed(1)
    model, batch = MODELS[name]()
    rng = np.random.default_rng(0)
    model.train_on_batch(*batch(rng, 4))
    step = evener.distribute(
        lambda x, y: model.train_step((x, y)),
        devices=["cpu:0", "cpu:1", "cpu:2"],
        shares=[13, 4, 7],
        verify=True,
    )
    for size in (24, 2):
        step(*tf.nest.map_structure(tf.constant, batch(rng, size)))
    gathered = [f"{operation.operation} {operation.name}" for operation in step.report().gathered]
    print(f"{name}: {step.report().num_operations} operations in parts, gathered: {gathered}")
    assert gathered == []


def test_nothing_is_gathered_of_batches_of_unlike_sizes() -> None:
    """The last batch is smaller: the step is traced for any size, of each input by itself."""

    def trained(scope: AbstractContextManager[Any]) -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        with scope:
            model, batch = masked_words()
        x, y = batch(np.random.default_rng(0), 50)
        model.fit(x, y, batch_size=20, shuffle=False, verbose=0)
        return model.get_weights()

    expected = trained(nullcontext())
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"], shares=[5, 3])
    for weight, other in zip(trained(strategy.scope()), expected, strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=1e-6)
    assert not strategy.report().gathered


# Steps that ask for the size (``x.shape[0]``), or draw from kernels with a seed, of which
# TensorFlow makes new ones for each size of batches.
SHAPES = {"convolutions": (9, 9, 3), "lstm": (5, 6), "gru": (5, 6), "attention": (5, 6)}


SIZES = (8, 8, 5)


Step = Callable[[Any], Any]


def trained(model: keras.Model, rate: float = 0.01) -> Any:
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
def test_nothing_is_gathered_of_batches_of_one_size(name: str) -> None:
    expected, _ = run(name, tf.function)
    devices = ["cpu:0", "cpu:1", "cpu:2"]
    actual, step = run(
        name, lambda step: evener.distribute(step, devices=devices, shares=[5, 3, 1], verify=False)
    )
    assert not step.report().gathered  # pyright: ignore[reportFunctionMemberAccess]
    for found, wanted in zip(actual, expected, strict=True):
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * scale)


GRADIENTS = frozenset({"Conv2DBackpropFilter", "Conv2DBackpropInput"})


NAMES = [name for name in sorted(CASES) if name.startswith("other_rows/")]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", NAMES)
def test_costly_work_is_in_parts(name: str) -> None:
    case, alone = CASES[name](), CASES[name]()
    step = evener.distribute(case.step, devices=["cpu:0", "cpu:1", "cpu:2"], shares=[13, 4, 7])
    check(case, train(alone, alone.step), train(case, step))
    for partition in (partitioned.partition for partitioned in step.partitioned_steps):
        costly = {
            node
            for node in partition.task_of
            if node.op in GRADIENTS | LOOPS or has_trait(node, Trait.COSTLY)
        }
        once = [node for node in costly if node not in partition.sharding.decisions]
        assert costly, "the case shows nothing"
        assert not once, f"computed once: {once}"


HERE = "test_nothing_gathered.py"


def sorted_loss(y: Any, p: Any) -> Any:
    """A loss that needs the order of all samples."""
    del y
    ranked = tf.sort(p[:, 0])
    return tf.reduce_mean(ranked * tf.range(tf.cast(tf.shape(p)[0], "float32")))


def model_with(loss: Any) -> keras.Model:
    with evener.Strategy(devices=["cpu:0", "cpu:1"], shares=[2, 1]).scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        model.compile("sgd", loss)
    return model


def audited(way: str) -> Audit:
    model = model_with(sorted_loss)
    x, y = tf.ones([6, 5]), tf.ones([6, 3])
    if way == "fit":
        return evener.audit(model, x, y)
    if way == "loop":
        strategy = model.distribute_strategy

        @tf.function
        def step(x: Any) -> Any:
            return strategy.run(lambda batch: sorted_loss(None, model(batch)), args=(x,))

        return evener.audit(step, x)
    return evener.audit(
        evener.distribute(lambda x: sorted_loss(None, x), devices=["cpu:0", "cpu:1"]), x
    )


@pytest.mark.parametrize("way", ["fit", "loop", "distribute"])
def test_names_operation_line_and_bytes(way: str) -> None:
    audit = audited(way)
    found = [operation for operation in audit.gathered if operation.operation == "TopKV2"]
    assert len(found) == 1
    assert found[0].line.partition(":")[0].endswith(HERE)
    assert found[0].num_bytes == 4
    assert Audit.from_json(audit.to_json()).gathered == audit.gathered
    assert json.loads(audit.to_json())["gathered"][0]["num_bytes"] == 4
    text = io.StringIO()
    print_audit(audit, Console(file=text, width=80))
    assert "Gathered operations" in text.getvalue()
    assert HERE in text.getvalue()


def test_says_nothing_where_nothing_is_gathered() -> None:
    audit = evener.audit(model_with("mse"), tf.ones([6, 5]), tf.ones([6, 3]))
    assert audit.gathered == ()
    text = io.StringIO()
    print_audit(audit, Console(file=text, width=80))
    assert "Gathered operations" not in text.getvalue()
