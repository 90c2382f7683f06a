"""Models whose rounding differs: what is held of them is in `test_verify`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

layers = keras.layers
Program = tuple[keras.Model, np.ndarray, np.ndarray | None]


def _rows(size: int, num: int = 32) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(num, size)).astype("float32")
    y = np.tanh(x @ random.normal(size=(size, 1))) + 0.1 * random.normal(size=(num, 1))
    return x, y.astype("float32")


def _images() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(32, 12, 12, 3)).astype("float32"), random.integers(0, 10, 32)


def _classes() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _compiled(parts: list[Any], optimizer: Any, loss: Any, *data: Any, **options: Any) -> Program:
    model = keras.Sequential(parts)
    model.compile(optimizer, loss, **options)
    return (model, *data)


def _dense(optimizer: Any, loss: str = "mse", *, dtype: str = "float32") -> Program:
    hidden = [layers.Dense(64, "relu", dtype=dtype) for _ in range(2)]
    parts = [keras.Input((32,)), *hidden, layers.Dense(1, dtype="float32")]
    return _compiled(parts, optimizer, loss, *_rows(32))


def _conv_bn_adam() -> Program:
    parts: list[Any] = [keras.Input((12, 12, 3))]
    for _ in range(2):
        parts += [layers.Conv2D(16, 3), layers.BatchNormalization(), layers.ReLU()]
    parts += [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    return _compiled(parts, "adam", _classes(), *_images(), metrics=["accuracy"])


def _pure_bfloat16() -> Program:
    dtype = "bfloat16"
    parts = [layers.Dense(32, "relu", dtype=dtype), layers.Dense(1, dtype=dtype)]
    parts = [keras.Input((32,), dtype=dtype), *parts]
    return _compiled(parts, keras.optimizers.SGD(0.05), "mse", *_rows(32))


def _lstm() -> Program:
    x = np.random.default_rng(0).normal(size=(32, 12, 6)).astype("float32")
    parts = [keras.Input((12, 6)), layers.LSTM(16), layers.Dense(1)]
    return _compiled(parts, "adam", "mse", x, np.tanh(x.sum((1, 2)))[:, None])


def _transformer() -> Program:
    tokens = keras.Input((10,), dtype="int32")
    hidden = layers.Embedding(50, 16)(tokens)
    hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 8)(hidden, hidden))
    wide = layers.Dense(16)(layers.Dense(32, "gelu")(hidden))
    hidden = layers.LayerNormalization()(hidden + wide)
    model = keras.Model(tokens, layers.Dense(50)(hidden))
    model.compile(keras.optimizers.AdamW(1e-3), _classes())
    x = np.random.default_rng(0).integers(0, 50, (32, 10))
    return model, x, (x * 3 + 1) % 50


def _loss_near_zero() -> Program:
    x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, "tanh"), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    first, last = (layer.get_weights() for layer in model.layers)
    y = np.tanh(x @ first[0] + first[1]) @ last[0] + last[1]
    return model, x, y.astype("float32")


def _embedding() -> Program:
    x = np.random.default_rng(0).integers(0, 100, (32, 5))
    parts = [layers.Embedding(100, 8), layers.Flatten(), layers.Dense(1)]
    parts = [keras.Input((5,), dtype="int32"), *parts]
    return _compiled(parts, "adam", "mse", x, (x.sum(1, keepdims=True) / 250).astype("float32"))


def _dropout_bn() -> Program:
    hidden = [layers.Dense(32), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.5)]
    parts = [keras.Input((16,)), *hidden, layers.Dense(1)]
    return _compiled(parts, "adam", "mse", *_rows(16), metrics=["mae"])


class _Adversarial(keras.Model):
    """Generator and discriminator, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = (
            keras.Sequential(
                [keras.Input((size,)), layers.Dense(16, "relu"), layers.Dense(results)]
            )
            for size, results in ((4, 8), (8, 1))
        )
        self.seeds = keras.random.SeedGenerator(3)
        self.optimizers = [keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)]
        for optimizer, model in zip(self.optimizers, (self.judge, self.maker), strict=True):
            optimizer.build(model.trainable_variables)

    def train_step(self, data: Any) -> dict[str, Any]:
        noise = keras.random.normal((tf.shape(data)[0], 4), seed=self.seeds)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        found = {}
        models = {"judge": self.judge, "maker": self.maker}
        for (name, model), optimizer in zip(models.items(), self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                false, true = self.judge(self.maker(noise)), self.judge(data)
                wanted = tf.zeros_like(false) if name == "judge" else tf.ones_like(false)
                total = loss(wanted, false) + loss(tf.ones_like(true), true)
            gradients = tape.gradient(total, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            found[name] = total
        return found


def _adversarial() -> Program:
    model = _Adversarial()
    model.compile()
    return model, _rows(8)[0], None


PROGRAMS: dict[str, Callable[[], Program]] = {
    "convolutions, BatchNormalization, Adam": _conv_bn_adam,
    "mixed bfloat16": lambda: _dense("adam", dtype="mixed_bfloat16"),
    "bfloat16": _pure_bfloat16,
    "mixed float16": lambda: _dense(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), dtype="mixed_float16"
    ),
    "LSTM": _lstm,
    "transformer": _transformer,
    "two optimizers": _adversarial,
    "loss near 0": _loss_near_zero,
    "RMSprop, tiny epsilon": lambda: _dense(keras.optimizers.RMSprop(1e-3, epsilon=1e-12)),
    "SGD, large rate": lambda: _dense(keras.optimizers.SGD(10.0, momentum=0.9)),
    "embedding": _embedding,
    "dropout, BatchNormalization": _dropout_bn,
    "absolute error, clipped": lambda: _dense(
        keras.optimizers.Adagrad(0.1, global_clipnorm=0.1), "mae"
    ),
    "Lion": lambda: _dense(keras.optimizers.Lion(1e-3)),
}
