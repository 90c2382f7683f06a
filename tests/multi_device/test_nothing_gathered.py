"""Training steps of the usual models compute everything in parts; what is gathered is printed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener

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
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, "gelu"), layers.LayerNormalization(), layers.Dense(3)]
    )
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
    model = keras.Sequential(
        [keras.Input((7, 4)), layer(8, return_sequences=True), layer(6), layers.Dense(1)]
    )
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
