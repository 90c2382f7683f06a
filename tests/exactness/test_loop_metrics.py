"""Metrics in custom loops."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from .candidates import Place
from .harness import FIVE, THREE, TWO, agree, sgd, unequal_weights
from .loops import (
    CROSS_ENTROPY,
    Parts,
    batches,
    calls_of,
    classifier,
    loop_results,
    run_loop,
    train_step,
)
from .models import mlp, tabular


@pytest.mark.long
def test_metrics() -> None:
    """Means, accuracies and an AUC, reset after every epoch."""
    x, y = tabular(75)
    labels = (y > 1).astype("float32")[:, None]

    def make() -> Parts:
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1, activation="sigmoid")])
        loss = keras.losses.BinaryCrossentropy()
        optimizer = sgd()
        metrics = (
            keras.metrics.Mean(name="loss"),
            keras.metrics.AUC(num_thresholds=50),
            keras.metrics.BinaryAccuracy(),
            keras.metrics.MeanSquaredError(),
            keras.metrics.RootMeanSquaredError(),
            keras.metrics.Precision(),
            keras.metrics.R2Score(),
        )
        step = train_step(model, optimizer, loss, metrics)
        return Parts(model=model, optimizers=(optimizer,), step=step, metrics=metrics)

    agree(lambda place: loop_results(place, make, batches(x, labels)), THREE)


@pytest.mark.long
def test_metrics_with_sample_weights() -> None:
    """Metrics whose samples weigh differently."""
    x, y = tabular(75)
    weights = unequal_weights(75)

    def make() -> Parts:
        model, optimizer = mlp(), sgd()
        metrics = (keras.metrics.SparseCategoricalAccuracy(),)
        step = train_step(model, optimizer, lambda y, p, w: CROSS_ENTROPY(y, p, w), metrics)
        return Parts(model=model, optimizers=(optimizer,), step=step, metrics=metrics)

    agree(lambda place: loop_results(place, make, batches(x, y, weights)), THREE)


@pytest.mark.long
def test_means() -> None:
    """A Mean of vectors, with weights, of a loss times the batch, and a Sum of counts."""
    x, y = tabular(75)
    each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def make() -> Parts:
        parts = classifier()()
        model = parts.model
        vector, weighted = keras.metrics.Mean(name="vector"), keras.metrics.Mean(name="weighted")
        count = keras.metrics.Sum(name="count")

        def step(x: Any, y: Any) -> Any:
            losses = each(y, model(x, training=False))
            vector.update_state(losses)
            weighted.update_state(losses, sample_weight=tf.cast(y, tf.float32))
            count.update_state(tf.ones_like(losses))
            return parts.step(x, y)

        return Parts(
            model=model,
            optimizers=parts.optimizers,
            step=step,
            metrics=(*parts.metrics, vector, weighted, count),
        )

    agree(lambda place: loop_results(place, make, batches(x, y)), THREE)


@pytest.mark.long
def test_a_mean_updated_outside_of_run() -> None:
    """A Mean that is given the reduced loss, outside of the replicas."""
    dataset = batches(*tabular(75))

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)
        with place.scope():
            parts = classifier()()
            mean = keras.metrics.Mean()

        @tf.function
        def train(batch: Any) -> None:
            mean.update_state(
                strategy.reduce("SUM", strategy.run(parts.step, args=batch), axis=None)
            )

        means = []
        for _ in range(2):
            for batch in strategy.experimental_distribute_dataset(dataset):
                train(batch)
            means.append(float(mean.result()))
            mean.reset_state()
        return {**parts.state(), "means": means}

    agree(experiment, TWO, FIVE)


@pytest.mark.long
def test_metrics_made_outside_of_the_scope() -> None:
    """A metric that knows of no strategy, updated in the replicas."""
    dataset = batches(*tabular(75))

    def experiment(place: Place) -> dict[str, object]:
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        with place.scope():
            model, optimizer = mlp(), sgd()
        step = train_step(model, optimizer, CROSS_ENTROPY, [accuracy])
        parts = Parts(model=model, optimizers=(optimizer,), step=step, metrics=(accuracy,))
        log = run_loop(place, parts, dataset)
        return {**parts.state(), **log.results()}

    agree(experiment, TWO)


@pytest.mark.long
def test_metric_results_inside_of_run() -> None:
    """A step that returns the result of a metric."""
    x, y = tabular(75)

    def make() -> Parts:
        accuracy = (keras.metrics.SparseCategoricalAccuracy(),)
        parts = classifier(metrics=lambda: accuracy)()
        return Parts(
            model=parts.model,
            optimizers=parts.optimizers,
            step=lambda x, y: parts.step(x, y),
            metrics=parts.metrics,
        )

    agree(lambda place: loop_results(place, make, batches(x, y)), THREE)
