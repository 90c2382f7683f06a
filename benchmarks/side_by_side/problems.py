"""Problems to train: small models of three kinds, on synthetic data in memory.

Keras is imported when a model is made, because the driver needs only names and sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from side_by_side.chains import mlp, transformer

Arrays = tuple[np.ndarray, np.ndarray]
SEED = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A model and its data.

    Attributes:
        name: Name on the command line.
        batch_size: Samples of a global batch.
        num_batches: Batches in memory; they are repeated.
        build: Makes the model.
        data: Makes that many samples and targets.
        targets_per_sample: Number of targets that the loss of one sample is a mean over.
        in_batches: Whether the data is in memory by batches: a GPU would wait for single samples.
        least_of_limit: The aim: evener's speed over the limit's.
    """

    name: str
    batch_size: int
    num_batches: int
    build: Callable[[], Any]
    data: Callable[[np.random.Generator, int], Arrays]
    targets_per_sample: int = 1
    in_batches: bool = False
    least_of_limit: float = 0.90


def _mlp() -> Any:
    import keras

    layers = keras.layers
    hidden = [layers.Dense(1024, activation="relu") for _ in range(4)]
    return keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)])


def _tiny() -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [keras.Input((32,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )


def _cnn(*, is_normalized: bool = False) -> Any:
    import keras

    layers = keras.layers
    body: list[Any] = []
    for filters in (32, 64, 128):
        body.append(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        if is_normalized:
            body.append(layers.BatchNormalization())
        body.append(layers.MaxPooling2D())
    return keras.Sequential(
        [keras.Input((32, 32, 3)), *body, layers.GlobalAveragePooling2D(), layers.Dense(10)]
    )


_LENGTH, _VOCABULARY, _WIDTH, _HEADS = 64, 1000, 192, 4


def _transformer() -> Any:
    import keras

    layers = keras.layers
    tokens = keras.Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(_VOCABULARY, _WIDTH)(tokens)
    # Positions: a bias per place and channel, because this has a gradient of its own.
    x = layers.EinsumDense("blw,lw->blw", output_shape=(_LENGTH, _WIDTH))(x)
    for _ in range(2):
        seen = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)
        x = layers.add([x, attention(seen, seen, use_causal_mask=True)])
        inner = layers.Dense(4 * _WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.add([x, layers.Dense(_WIDTH)(inner)])
    return keras.Model(tokens, layers.Dense(_VOCABULARY)(layers.LayerNormalization()(x)))


def _vectors(width: int) -> Callable[[np.random.Generator, int], Arrays]:
    def data(rng: np.random.Generator, num_samples: int) -> Arrays:
        x = rng.random((num_samples, width), dtype="float32")
        return x, rng.integers(0, 10, num_samples).astype("int32")

    return data


def _images(size: int) -> Callable[[np.random.Generator, int], Arrays]:
    def data(rng: np.random.Generator, num_samples: int) -> Arrays:
        x = rng.random((num_samples, size, size, 3), dtype="float32")
        return x, rng.integers(0, 10, num_samples).astype("int32")

    return data


def _text(vocabulary: int, length: int) -> Callable[[np.random.Generator, int], Arrays]:
    def data(rng: np.random.Generator, num_samples: int) -> Arrays:
        text = rng.integers(0, vocabulary, (num_samples, length + 1)).astype("int32")
        return text[:, :-1], text[:, 1:]

    return data


def _resnet() -> Any:
    import keras

    return keras.applications.ResNet50(weights=None, classes=10, classifier_activation=None)


# Few different tokens, so that the head does not make the second half longer than the first.
_BYTES = 256
_LONG, _WORDS = 256, 4096

CHAINS = {
    "deep_mlp": mlp(num_blocks=8, width=1024, num_classes=10),
    "wide_mlp": mlp(num_blocks=8, width=4096, num_classes=10),
    "language_model": transformer(
        num_blocks=6, width=768, num_heads=12, length=_LONG, vocabulary=_WORDS
    ),
    "deep_transformer": transformer(
        num_blocks=6, width=192, num_heads=4, length=_LENGTH, vocabulary=_BYTES
    ),
}

PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(
            name="mlp",
            batch_size=512,
            num_batches=16,
            build=_mlp,
            data=_vectors(784),
            least_of_limit=0.98,
        ),
        Problem(
            name="cnn",
            batch_size=128,
            num_batches=16,
            build=_cnn,
            data=_images(32),
            least_of_limit=0.95,
        ),
        Problem(
            name="cnn_with_batch_norm",
            batch_size=128,
            num_batches=16,
            build=functools.partial(_cnn, is_normalized=True),
            data=_images(32),
        ),
        Problem(
            name="transformer",
            batch_size=32,
            num_batches=32,
            build=_transformer,
            data=_text(_VOCABULARY, _LENGTH),
            targets_per_sample=_LENGTH,
            least_of_limit=0.98,
        ),
        Problem(name="tiny", batch_size=32, num_batches=64, build=_tiny, data=_vectors(32)),
        Problem(
            name="deep_mlp",
            batch_size=1024,
            num_batches=8,
            build=CHAINS["deep_mlp"].build,
            data=_vectors(1024),
        ),
        Problem(
            name="deep_transformer",
            batch_size=64,
            num_batches=16,
            build=CHAINS["deep_transformer"].build,
            data=_text(_BYTES, _LENGTH),
            targets_per_sample=_LENGTH,
        ),
        # For a GPU.
        Problem(
            name="wide_mlp",
            batch_size=4096,
            num_batches=4,
            build=CHAINS["wide_mlp"].build,
            data=_vectors(4096),
            in_batches=True,
        ),
        Problem(
            name="resnet50",
            batch_size=32,
            num_batches=4,
            build=_resnet,
            data=_images(224),
            in_batches=True,
        ),
        Problem(
            name="language_model",
            batch_size=16,
            num_batches=16,
            build=CHAINS["language_model"].build,
            data=_text(_WORDS, _LONG),
            targets_per_sample=_LONG,
            in_batches=True,
        ),
    )
}


def make_dataset(problem: Problem, *, batch_size: int | None = None) -> Any:
    """Return the endless dataset, the same for every contender but for its batch size."""
    import tensorflow as tf

    size, count = problem.batch_size, problem.num_batches
    arrays = problem.data(np.random.default_rng(SEED), size * count)
    if problem.in_batches:
        batches = tuple(array.reshape(count, size, *array.shape[1:]) for array in arrays)
        return tf.data.Dataset.from_tensor_slices(batches).repeat().prefetch(2)
    dataset = tf.data.Dataset.from_tensor_slices(arrays).repeat()
    return dataset.batch(batch_size or problem.batch_size, drop_remainder=True).prefetch(2)


def make_loss(*, reduction: str = "sum_over_batch_size") -> Any:
    """Return the loss of all problems."""
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def make_optimizer(name: str) -> Any:
    """Return an optimizer: ``"adam"`` or ``"sgd"``, which has momentum."""
    import keras

    if name == "sgd":
        return keras.optimizers.SGD(0.01, momentum=0.9)
    return keras.optimizers.Adam(1e-3)
