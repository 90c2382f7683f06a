"""Models and optimizers of the law: small, smooth, with data that gives something to learn.

Activations are smooth (tanh, gelu, silu): at a ReLU's kink one rounding error decides
whether a gradient exists, and the weights then differ by far more than rounding. Biases
whose exact gradient is zero (before a BatchNorm, of attention keys) are left out, because
what they follow is rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops

Arrays = np.ndarray | Mapping[str, np.ndarray]
NUM_SAMPLES = 75  # with batches of 16: four full ones and one of 11
NUM_WHOLE = 80  # five full ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, how it is compiled, and the data it is trained on.

    Attributes:
        name: The name in test identifiers and in the table of tolerances.
        build: Makes the model; called under the scope of what trains it.
        data: Makes ``(x, y)`` for a number of samples.
        compiled: Makes the arguments of `compile`, the optimizer excepted.
    """

    name: str
    build: Callable[[], keras.Model]
    data: Callable[[int], tuple[Arrays, Arrays]]
    compiled: Callable[[], dict[str, object]] = field(default=lambda: {"loss": "mse"})


def tabular(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of eight numbers and one of four kinds."""
    x = np.random.default_rng(1).normal(size=(num_samples, 8)).astype("float32")
    return x, np.argmax(np.tanh(x[:, :4]) + 0.5 * x[:, 4:], axis=1).astype("int32")


def regression(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of eight numbers and one smooth function of them."""
    x = np.random.default_rng(2).normal(size=(num_samples, 8)).astype("float32")
    return x, (np.sin(x[:, :1]) + 0.3 * x[:, 1:2] * x[:, 2:3]).astype("float32")


def pictures(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of 8 x 8 whose kind is the quadrant that is brightest."""
    x = np.random.default_rng(3).normal(size=(num_samples, 8, 8, 1)).astype("float32")
    quadrants = x.reshape(num_samples, 2, 4, 2, 4).mean(axis=(2, 4)).reshape(num_samples, 4)
    return x, np.argmax(quadrants, axis=1).astype("int32")


def series(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Six moments of three signals, and a number that depends on their order."""
    x = np.random.default_rng(4).normal(size=(num_samples, 6, 3)).astype("float32")
    weights = np.linspace(-1.0, 1.0, 6).reshape(1, 6)
    return x, np.tanh((x[:, :, 0] * weights).sum(axis=1, keepdims=True)).astype("float32")


def sentences(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Padded token ids of different lengths, and the same tokens one place on."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(1, 20, size=(num_samples, 9))
    tokens[:, 1::2] = (tokens[:, 0:-1:2] * 3) % 19 + 1
    lengths = rng.integers(2, 10, size=num_samples)
    tokens[np.arange(9)[None, :] >= lengths[:, None]] = 0
    return tokens[:, :-1].astype("int32"), tokens[:, 1:].astype("int32")


def pairs(num_samples: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Two inputs by name and two targets by name."""
    rng = np.random.default_rng(6)
    left = rng.normal(size=(num_samples, 6)).astype("float32")
    right = rng.normal(size=(num_samples, 4)).astype("float32")
    kind = np.argmax(left[:, :3] + right[:, :3], axis=1).astype("int32")
    size = np.tanh(left[:, 3:4] - right[:, 3:4]).astype("float32")
    return {"left": left, "right": right}, {"kind": kind, "size": size}


def sequential(shape: tuple[int | None, ...], *stack: keras.Layer, **settings: Any) -> keras.Model:
    """Return layers in line, behind an input of a shape."""
    return keras.Sequential([keras.Input(shape, **settings), *stack])


def mlp() -> keras.Model:
    return sequential(
        (8,),
        layers.Dense(16, activation="tanh"),
        layers.Dense(12, activation="gelu"),
        layers.Dense(4),
    )


def regressor() -> keras.Model:
    return sequential((8,), layers.Dense(12, activation="tanh"), layers.Dense(1))


def cnn() -> keras.Model:
    """Two convolutions, each with a BatchNorm over the whole batch."""
    return sequential(
        (8, 8, 1),
        layers.Conv2D(4, 3, use_bias=False),
        layers.BatchNormalization(momentum=0.8, synchronized=True),
        layers.Activation("silu"),
        layers.Conv2D(6, 3, strides=2, use_bias=False),
        layers.BatchNormalization(momentum=0.8, synchronized=True),
        layers.Activation("silu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(4),
    )


def lstm() -> keras.Model:
    return keras.Sequential([keras.Input((6, 3)), layers.LSTM(8), layers.Dense(1)])


def transformer() -> keras.Model:
    """One block of causal attention over padded tokens; the embedding is tied to the head."""
    embedding = layers.ReversibleEmbedding(20, 8, mask_zero=True, name="tokens")
    tokens = keras.Input((8,), dtype="int32")
    x = embedding(tokens)
    attended = layers.MultiHeadAttention(2, 4, use_bias=False)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    hidden = layers.Dense(16, activation="gelu")(x)
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(8)(hidden)]))
    return keras.Model(tokens, embedding(x, reverse=True))


def two_by_two() -> keras.Model:
    left, right = keras.Input((6,), name="left"), keras.Input((4,), name="right")
    joint = layers.Concatenate()(
        [layers.Dense(8, activation="tanh")(left), layers.Dense(6, activation="gelu")(right)]
    )
    joint = layers.Dense(10, activation="tanh")(joint)
    outputs = {
        "kind": layers.Dense(3, name="kind")(joint),
        "size": layers.Dense(1, name="size")(joint),
    }
    return keras.Model({"left": left, "right": right}, outputs)


@keras.saving.register_keras_serializable("exactness")
class WithAddedLoss(keras.Model):
    """A subclassed model that adds a loss of its activations, as a mean or as a sum."""

    def __init__(self, over_batch: str = "mean", **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.over_batch = over_batch
        self.hidden = layers.Dense(12, activation="tanh")
        self.head = layers.Dense(1)

    def call(self, x: object) -> object:
        hidden = self.hidden(x)
        squares = ops.sum(ops.square(hidden), axis=-1)
        total = ops.mean(squares) if self.over_batch == "mean" else ops.sum(squares) / 16.0
        self.add_loss(0.1 * total)
        return self.head(hidden)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "over_batch": self.over_batch}


def classes() -> dict[str, object]:
    return {
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }


def numbers() -> dict[str, object]:
    return {"loss": "mse", "metrics": ["mae", keras.metrics.RootMeanSquaredError()]}


def several() -> dict[str, object]:
    return {
        "loss": {
            "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "size": "mse",
        },
        "loss_weights": {"kind": 0.7, "size": 1.9},
        "metrics": {"kind": ["accuracy"], "size": ["mae"]},
    }


CASES = (
    Case(name="mlp", build=mlp, data=tabular, compiled=classes),
    Case(name="cnn", build=cnn, data=pictures, compiled=classes),
    Case(name="lstm", build=lstm, data=series, compiled=numbers),
    Case(name="transformer", build=transformer, data=sentences, compiled=classes),
    Case(name="two_by_two", build=two_by_two, data=pairs, compiled=several),
    Case(name="add_loss_mean", build=WithAddedLoss, data=regression, compiled=numbers),
    Case(
        name="add_loss_sum", build=lambda: WithAddedLoss("sum"), data=regression, compiled=numbers
    ),
)
BY_NAME = {case.name: case for case in CASES}


# Adam's and AdamW's epsilon is 1e-3 and not 1e-7: where a gradient is near zero, they divide
# rounding by rounding, and the first steps are then plus or minus the whole learning rate.
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, epsilon=1e-3),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.02, epsilon=1e-3),
    "lion": lambda: keras.optimizers.Lion(0.003),
}
