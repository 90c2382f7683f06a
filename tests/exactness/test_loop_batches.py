"""Batches of every size in custom loops: partial, tiny, unknown, by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from .candidates import Place
from .harness import FIVE, TWO, Layout, agree
from .loops import (
    CROSS_ENTROPY,
    Parts,
    batches,
    calls_of,
    classifier,
    loop_results,
    predict_loop,
    run_loop,
    train_step,
)
from .models import BY_NAME, pictures, tabular
from .optimizers import OPTIMIZERS


@pytest.mark.long
@pytest.mark.parametrize("samples", [17, 18, 19])
def test_batches_smaller_than_the_replicas(samples: int) -> None:
    """The last batch has one, two or three samples; some replicas have none."""
    x, y = tabular(samples)

    def accuracy() -> tuple[keras.Metric, ...]:
        return (keras.metrics.SparseCategoricalAccuracy(),)

    def experiment(place: Place) -> dict[str, object]:
        make = classifier(metrics=accuracy)
        return loop_results(place, make, batches(x, y), epochs=3)

    agree(experiment, TWO, Layout(num_devices=5))


@pytest.mark.long
@pytest.mark.parametrize("name", ["cnn", "lstm", "transformer"])
def test_replicas_without_samples(name: str) -> None:
    """The same for models with BatchNormalization, loops and masks."""
    case = BY_NAME[name]

    def experiment(place: Place) -> dict[str, object]:
        x, y = case.data(18)

        def make() -> Parts:
            model, optimizer = case.build(), OPTIMIZERS["adam"]()
            loss = keras.losses.MeanSquaredError() if name == "lstm" else CROSS_ENTROPY
            return Parts(
                model=model, optimizers=(optimizer,), step=train_step(model, optimizer, loss)
            )

        return loop_results(place, make, batches(x, y), epochs=3)

    agree(experiment, Layout(num_devices=5))


def convolutions() -> keras.Model:
    """Return two convolutions, without BatchNormalization."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="tanh"),
            layers.MaxPooling2D(),
            layers.Conv2D(6, 2, activation="tanh"),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )


@pytest.mark.long
def test_convolutions_without_samples() -> None:
    """The same for convolutions; the evaluation has replicas without samples too."""
    x, y = pictures(18)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            parts = classifier(convolutions)()
        log = run_loop(place, parts, batches(x, y), epochs=3)
        return {
            **parts.state(),
            **log.results(),
            "predict": predict_loop(place, parts.model, x, 16),
        }

    agree(experiment, Layout(num_devices=5))


@pytest.mark.long
def test_an_unknown_batch_size() -> None:
    """Batches from a generator, each of another size."""
    x, y = tabular(40)
    bounds = [0, 7, 20, 21, 37, 40]

    def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for a, b in itertools.pairwise(bounds):
            yield x[a:b], y[a:b]

    spec = (tf.TensorSpec((None, 8), tf.float32), tf.TensorSpec((None,), tf.int32))

    def experiment(place: Place) -> dict[str, object]:
        dataset = tf.data.Dataset.from_generator(generate, output_signature=spec)
        return loop_results(place, classifier(), dataset)

    agree(experiment, TWO)


@pytest.mark.long
def test_whole_batches_alone() -> None:
    """A dataset that drops the remainder: every size is known while tracing."""
    x, y = tabular(75)
    dataset = batches(x, y, drop_remainder=True)
    agree(lambda place: loop_results(place, classifier(), dataset), TWO, FIVE)


@pytest.mark.long
def test_one_argument_for_the_batch() -> None:
    """``run(step, args=(batch,))``, with the batch a mapping."""
    x, y = tabular(75)

    def experiment(place: Place) -> dict[str, object]:
        dataset = tf.data.Dataset.from_tensor_slices({"x": x, "y": y}).batch(16)

        def make() -> Parts:
            parts = classifier()()

            def step(batch: Any) -> Any:
                return parts.step(batch["x"], batch["y"])

            return Parts(
                model=parts.model, optimizers=parts.optimizers, step=step, metrics=parts.metrics
            )

        dataset = dataset.map(lambda batch: (batch,))
        return loop_results(place, make, dataset)

    agree(experiment, TWO)


@pytest.mark.long
def test_batches_made_for_each_replica() -> None:
    """`distribute_datasets_from_function`, with the batch size of a replica."""
    x, y = tabular(60)

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            size = context.get_per_replica_batch_size(16)
            return tf.data.Dataset.from_tensor_slices((x, y)).batch(size)

        with place.scope():
            parts = classifier()()

        @tf.function
        def train(batch: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(parts.step, args=batch), axis=None)

        losses = []
        for _ in range(2):
            for batch in strategy.distribute_datasets_from_function(make):
                losses.append(float(train(batch)))
        return {**parts.state(), "losses": losses}

    agree(experiment, TWO, Layout(num_devices=2))
