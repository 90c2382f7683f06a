"""Several models, optimizers and tapes in one loop, and gradients added up by hand."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from .candidates import Place
from .harness import FIVE, TWO, agree, sgd
from .loops import CROSS_ENTROPY, Parts, batches, calls_of, loop_results
from .models import mlp, regression, tabular
from .optimizers import OPTIMIZERS


@pytest.mark.long
def test_two_optimizers_over_two_parts() -> None:
    """One optimizer for the first layers, another for the last one, one tape."""
    x, y = tabular(75)

    def make() -> Parts:
        model = mlp()
        body, head = sgd(), OPTIMIZERS["adam"]()

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = CROSS_ENTROPY(y, model(x, training=True))
            first = [v for layer in model.layers[:-1] for v in layer.trainable_variables]
            last = model.layers[-1].trainable_variables
            for_first, for_last = tape.gradient(loss, (first, last))
            body.apply_gradients(zip(for_first, first, strict=True))
            head.apply_gradients(zip(for_last, last, strict=True))
            return loss

        return Parts(model=model, optimizers=(body, head), step=step)

    agree(lambda place: loop_results(place, make, batches(x, y)), TWO, FIVE)


@pytest.mark.long
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_gan_with_two_tapes(reduction: str) -> None:
    """A generator against a discriminator; noise comes with the data, so that it is the same."""
    x = regression(75)[0]
    noise = np.random.default_rng(9).normal(size=(75, 3)).astype("float32")

    def make() -> Parts:
        generator = keras.Sequential(
            [keras.Input((3,)), layers.Dense(8, activation="tanh"), layers.Dense(8)]
        )
        judge = keras.Sequential(
            [keras.Input((8,)), layers.Dense(8, activation="tanh"), layers.Dense(1)]
        )
        both = keras.Sequential([generator, judge])
        for_generator, for_judge = OPTIMIZERS["adam"](), OPTIMIZERS["adam"]()
        entropy = keras.losses.BinaryCrossentropy(from_logits=True, reduction=reduction)

        def loss_of(truth: Any, given: Any) -> Any:
            loss = entropy(truth, given)
            if reduction == "sum":
                return loss / 16.0
            return tf.nn.compute_average_loss(loss)

        def step(x: Any, noise: Any) -> Any:
            with tf.GradientTape() as of_generator, tf.GradientTape() as of_judge:
                made = generator(noise, training=True)
                real, fake = judge(x, training=True), judge(made, training=True)
                loss_generator = loss_of(tf.ones_like(fake), fake)
                loss_judge = loss_of(tf.ones_like(real), real) + loss_of(tf.zeros_like(fake), fake)
            first = of_generator.gradient(loss_generator, generator.trainable_variables)
            second = of_judge.gradient(loss_judge, judge.trainable_variables)
            for_generator.apply_gradients(zip(first, generator.trainable_variables, strict=True))
            for_judge.apply_gradients(zip(second, judge.trainable_variables, strict=True))
            return {"generator": loss_generator, "judge": loss_judge}

        return Parts(model=both, optimizers=(for_generator, for_judge), step=step)

    agree(lambda place: loop_results(place, make, batches(x, noise)), TWO, FIVE)


@pytest.mark.long
def test_gradients_accumulated_by_hand() -> None:
    """Gradients are added up in variables; an optimizer takes them every second step."""
    x, y = tabular(64)

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)
        with place.scope():
            model, optimizer = mlp(), sgd()
            sums = [
                tf.Variable(
                    tf.zeros(v.shape),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
                for v in model.trainable_variables
            ]

        def add(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = CROSS_ENTROPY(y, model(x, training=True)) / 2.0
            for total, gradient in zip(
                sums, tape.gradient(loss, model.trainable_variables), strict=True
            ):
                total.assign_add(gradient)
            return loss

        def update() -> None:
            gradients = [total.read_value() for total in sums]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            for total in sums:
                total.assign(tf.zeros_like(total))

        @tf.function
        def train(first: Any, second: Any) -> Any:
            a = strategy.reduce("SUM", strategy.run(add, args=first), axis=None)
            b = strategy.reduce("SUM", strategy.run(add, args=second), axis=None)
            strategy.run(update)
            return a + b

        losses = []
        for _ in range(2):
            iterator = iter(strategy.experimental_distribute_dataset(batches(x, y)))
            losses.extend(float(train(next(iterator), next(iterator))) for _ in range(2))
        parts = Parts(model=model, optimizers=(optimizer,), step=add)
        return {**parts.state(), "losses": losses, "left": [total.numpy() for total in sums]}

    agree(experiment, TWO, FIVE)


@pytest.mark.long
@pytest.mark.parametrize("in_scope", [False, True])
def test_gradients_accumulated_and_applied_outside_of_run(in_scope: bool) -> None:
    """Replicas add to a variable whose writes are summed; one update, outside of ``run``."""
    x, y = tabular(64)

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)
        with place.scope():
            model, optimizer = mlp(), sgd()
            sums = [
                tf.Variable(
                    tf.zeros(v.shape), trainable=False, aggregation=tf.VariableAggregation.SUM
                )
                for v in model.trainable_variables
            ]

        def add(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = CROSS_ENTROPY(y, model(x, training=True)) / 2.0
            gradients = tape.gradient(loss, model.trainable_variables)
            for total, gradient in zip(sums, gradients, strict=True):
                total.assign_add(gradient)
            return loss

        @tf.function
        def accumulate(batch: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(add, args=batch), axis=None)

        @tf.function
        def update() -> None:
            optimizer.apply(list(sums), model.trainable_variables)
            for total in sums:
                total.assign(tf.zeros_like(total))

        losses = []
        for k, batch in enumerate(strategy.experimental_distribute_dataset(batches(x, y))):
            losses.append(float(accumulate(batch)))
            if k % 2 == 1:
                with place.scope() if in_scope else contextlib.nullcontext():
                    update()
        parts = Parts(model=model, optimizers=(optimizer,), step=add)
        return {**parts.state(), "losses": losses}

    agree(experiment, TWO)
