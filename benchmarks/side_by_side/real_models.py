"""Fifteen models that people train, with random weights: as scripts, and for a benchmark.

As a script it trains one of them for three batches::

    evener estimate benchmarks/side_by_side/real_models.py ResNet50
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

NUM_CLASSES, VOCABULARY = 100, 8000
SEED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RealModel:
    """A model and the batch that it is trained on.

    Attributes:
        build: Makes the model.
        batch_size: Samples of a batch.
        shape: Shape of a sample.
        is_tokens: Whether the samples are whole numbers below ``VOCABULARY``.
        target: Shape of the targets of a sample; classes, unless ``loss`` says else.
        loss: Loss of Keras, of logits.
    """

    build: Callable[[], Any]
    batch_size: int
    shape: tuple[int, ...]
    is_tokens: bool = False
    target: tuple[int, ...] = ()
    loss: str = "classes"

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a batch of inputs and targets."""
        drawn = np.random.default_rng(SEED)
        size = (self.batch_size, *self.shape)
        x = drawn.integers(0, VOCABULARY, size) if self.is_tokens else drawn.random(size)
        y = drawn.integers(0, 2, (self.batch_size, *self.target))
        return (
            x.astype("int32" if self.is_tokens else "float32"),
            y.astype("float32" if self.loss == "binary" else "int32"),
        )

    def compiled(self) -> Any:
        """Return the model, compiled with Adam."""
        import keras

        keras.utils.set_random_seed(SEED)
        losses = {
            "classes": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "binary": keras.losses.BinaryCrossentropy(from_logits=True),
        }
        model = self.build()
        model.compile("adam", losses[self.loss], jit_compile=False)
        return model


def _application(name: str, side: int, batch_size: int) -> RealModel:
    def build() -> Any:
        import keras

        make = getattr(keras.applications, name)
        return make(
            weights=None,
            input_shape=(side, side, 3),
            classes=NUM_CLASSES,
            classifier_activation=None,
        )

    return RealModel(build=build, batch_size=batch_size, shape=(side, side, 3))


def _unet() -> Any:
    import keras

    layers = keras.layers

    def block(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    x = inputs = keras.Input((128, 128, 3))
    kept: list[Any] = []
    for filters in (32, 64, 128):
        x = block(x, filters)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 256)
    for filters in (128, 64, 32):
        x = layers.Conv2DTranspose(filters, 2, strides=2)(x)
        x = block(layers.Concatenate()([x, kept.pop()]), filters)
    return keras.Model(inputs, layers.Conv2D(1, 1)(x))


def _transformer(*, is_causal: bool) -> Any:
    import keras

    layers = keras.layers
    length, width, heads = 128, 256, 4
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(VOCABULARY, width)(inputs)
    x = x + layers.Embedding(length, width)(keras.ops.arange(length))
    for _ in range(6):
        seen = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)
        x = x + attention(seen, seen, use_causal_mask=is_causal)
        hidden = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(0.1)(layers.Dense(width)(hidden))
    x = layers.LayerNormalization()(x)
    if is_causal:
        return keras.Model(inputs, layers.Dense(VOCABULARY)(x))
    return keras.Model(inputs, layers.Dense(NUM_CLASSES)(x[:, 0]))


def _lstm() -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((64,), dtype="int32"),
            layers.Embedding(VOCABULARY, 128),
            layers.Bidirectional(layers.LSTM(128, return_sequences=True)),
            layers.LSTM(128),
            layers.Dense(NUM_CLASSES),
        ]
    )


def _recommender() -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input((16,), dtype="int32")
    features = layers.Embedding(VOCABULARY, 64)(inputs)
    crossed = layers.Dot(axes=2)([features, features])
    x = layers.Concatenate()([layers.Flatten()(features), layers.Flatten()(crossed)])
    for units in (512, 256):
        x = layers.Dense(units, "relu")(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def _tokens(build: Callable[[], Any], length: int, batch_size: int, **settings: Any) -> RealModel:
    return RealModel(
        build=build, batch_size=batch_size, shape=(length,), is_tokens=True, **settings
    )


REAL_MODELS: dict[str, RealModel] = {
    **{
        name: _application(name, side, batch_size)
        for name, side, batch_size in (
            ("MobileNetV2", 96, 16),
            ("MobileNetV3Small", 96, 16),
            ("EfficientNetB0", 96, 16),
            ("EfficientNetV2B0", 96, 16),
            ("ResNet50", 96, 16),
            ("ResNet50V2", 96, 16),
            ("DenseNet121", 96, 16),
            ("InceptionV3", 96, 16),
            ("Xception", 96, 16),
            ("VGG16", 64, 16),
        )
    },
    "U-Net": RealModel(
        build=_unet,
        batch_size=8,
        shape=(128, 128, 3),
        target=(128, 128, 1),
        loss="binary",
    ),
    "GPT": _tokens(lambda: _transformer(is_causal=True), 128, 8, target=(128,)),
    "BERT": _tokens(lambda: _transformer(is_causal=False), 128, 8),
    "LSTM": _tokens(_lstm, 64, 64),
    "recommender": _tokens(_recommender, 16, 512, target=(1,), loss="binary"),
}

if __name__ == "__main__":
    trained = REAL_MODELS[sys.argv[1]]
    inputs, targets = trained.batch()
    model = trained.compiled()
    for _ in range(3):
        model.fit(inputs, targets, batch_size=trained.batch_size, verbose=0)
