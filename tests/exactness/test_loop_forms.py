"""The forms in which a custom loop is written: iterators, loops in a graph, eager mode."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from .candidates import Place
from .harness import FIVE, THREE, TWO, agree, sgd
from .loops import (
    CROSS_ENTROPY,
    Parts,
    batches,
    calls_of,
    classifier,
    eagerly,
    loop_results,
    saying,
)
from .models import BY_NAME, mlp, tabular
from .sparing import usually


@pytest.mark.long
def test_iterator_in_a_function() -> None:
    """An iterator handed to a `tf.function`."""
    dataset = batches(*tabular(75))

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)
        with place.scope():
            parts = classifier()()

        @tf.function
        def train(iterator: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(parts.step, args=next(iterator)), axis=None)

        losses = []
        for _ in range(2):
            iterator = iter(strategy.experimental_distribute_dataset(dataset))
            losses.extend(float(train(iterator)) for _ in range(5))
        return {**parts.state(), "losses": losses}

    agree(experiment, TWO, FIVE)


@pytest.mark.long
def test_several_steps_in_one_function() -> None:
    """A loop over ``tf.range`` inside the `tf.function`, with the losses added up."""
    dataset = batches(*tabular(64)).repeat()

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)
        with place.scope():
            parts = classifier()()

        @tf.function
        def train(iterator: Any, steps: Any) -> Any:
            total = 0.0
            for _ in tf.range(steps):
                losses = strategy.run(parts.step, args=next(iterator))
                total += strategy.reduce("SUM", losses, axis=None)
            return total / tf.cast(steps, tf.float32)

        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        losses = [float(train(iterator, tf.constant(steps))) for steps in (3, 4, 2)]
        return {**parts.state(), "losses": losses, "mean": float(parts.metrics[0].result())}

    agree(experiment, TWO, FIVE)


def test_a_loop_over_the_dataset_in_a_function() -> None:
    """A whole epoch is one call."""
    dataset = batches(*tabular(75))

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)
        with place.scope():
            parts = classifier()()

        @tf.function
        def epoch(distributed: Any) -> Any:
            total, steps = 0.0, 0
            for batch in distributed:
                losses = strategy.run(parts.step, args=batch)
                total += strategy.reduce("SUM", losses, axis=None)
                steps += 1
            return total / tf.cast(steps, tf.float32)

        distributed = strategy.experimental_distribute_dataset(dataset)
        losses = [float(epoch(distributed)) for _ in range(2)]
        return {**parts.state(), "losses": losses, "mean": float(parts.metrics[0].result())}

    agree(experiment, TWO, FIVE)


@pytest.mark.parametrize("name", usually(["mlp", "transformer", "cnn"], ["mlp"]))
def test_eager_mode(name: str) -> None:
    """Operation by operation: exact, and said to be slow, once."""
    case = BY_NAME[name]
    x, y = case.data(43)

    def experiment(place: Place) -> dict[str, object]:
        def accuracy() -> tuple[keras.Metric, ...]:
            return (keras.metrics.SparseCategoricalAccuracy(),)

        with eagerly():
            make = classifier(case.build, accuracy)
            return loop_results(place, make, batches(x, y), epochs=2)

    with saying("ENG-086"):
        agree(experiment, THREE)


@pytest.mark.long
def test_run_outside_of_a_function() -> None:
    """``run`` called eagerly, without a `tf.function` anywhere."""
    dataset = batches(*tabular(43))

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)
        with place.scope():
            parts = classifier()()
        losses = []
        for batch in strategy.experimental_distribute_dataset(dataset):
            logged = strategy.run(parts.step, args=batch)
            losses.append(float(strategy.reduce("SUM", logged, axis=None)))
        return {**parts.state(), "losses": losses}

    with saying("ENG-086"):
        agree(experiment, TWO)


def test_the_replicas_function_is_a_tf_function() -> None:
    """``run`` called eagerly with a `tf.function`."""
    dataset = batches(*tabular(75))

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)
        with place.scope():
            parts = classifier()()
        step = tf.function(parts.step)
        losses = []
        for batch in strategy.experimental_distribute_dataset(dataset):
            losses.append(float(strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)))
        return {**parts.state(), "losses": losses}

    with saying():
        agree(experiment, TWO, FIVE)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_nested_function_for_the_forward_pass(name: str) -> None:
    """The model is called in a `tf.function` of its own, in the replica."""
    case = BY_NAME[name]
    x, y = case.data(75)

    def make() -> Parts:
        model, optimizer = case.build(), sgd()
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

        @tf.function
        def forward(x: Any) -> Any:
            return model(x, training=True)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(y, forward(x)) / 16.0
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return Parts(model=model, optimizers=(optimizer,), step=step)

    agree(lambda place: loop_results(place, make, batches(x, y)), TWO, FIVE)


@pytest.mark.long
def test_the_loss_in_a_nested_function() -> None:
    """Forward pass and a mean over the batch in a `tf.function` of their own."""
    x, y = tabular(75)

    def make() -> Parts:
        model, optimizer = mlp(), sgd()

        @tf.function
        def forward(x: Any, y: Any) -> Any:
            return CROSS_ENTROPY(y, model(x, training=True))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = forward(x, y)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return Parts(model=model, optimizers=(optimizer,), step=step)

    agree(lambda place: loop_results(place, make, batches(x, y)), TWO, FIVE)
