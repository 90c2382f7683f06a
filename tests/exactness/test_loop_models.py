"""Custom loops over models of many kinds: metrics, several optimizers and tapes."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from .candidates import Place
from .harness import FIVE, THREE, TWO, Layout, agree, sgd, unequal_weights
from .loops import (
    CROSS_ENTROPY,
    Parts,
    agree_in_loop,
    batches,
    calls_of,
    classifier,
    loop_results,
    run_loop,
    train_step,
)
from .models import OPTIMIZERS, mlp, regression, sentences, sequential, series, tabular

EVEN = Layout(num_devices=2)


class Positions(layers.Layer):
    """An embedding of places: its slices are as many as places, whatever the batch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = layers.Embedding(6, 3, name="table")

    def call(self, x: Any) -> Any:
        return x + self.table(tf.range(6))


@pytest.mark.long
def test_slices_that_do_not_grow_with_the_batch() -> None:
    """Optimizers square slices one by one, so those of two shares must be one slice."""

    def make() -> Parts:
        model = sequential((6, 3), Positions(name="places"), layers.LSTM(4), layers.Dense(1))
        made = OPTIMIZERS["adam"]()
        step = train_step(model, made, keras.losses.MeanSquaredError())
        return Parts(model=model, optimizers=(made,), step=step)

    agree_in_loop(make, batches(*series(75)), TWO, FIVE)


@pytest.mark.covering(1)
@pytest.mark.long
@pytest.mark.parametrize("clip", [None, "clipnorm", "global_clipnorm"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_embeddings(optimizer: str, clip: str | None) -> None:
    tokens, following = sentences(75)
    kinds = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}

    def make() -> Parts:
        model = sequential(
            (8,),
            layers.Embedding(20, 6),
            layers.GlobalAveragePooling1D(),
            layers.Dense(20),
            dtype="int32",
        )
        more: dict[str, Any] = {clip: 0.05} if clip else {}
        if optimizer == "adam":
            more["epsilon"] = 1e-3
        made = kinds[optimizer](0.05, **more)
        step = train_step(model, made, CROSS_ENTROPY)
        return Parts(model=model, optimizers=(made,), step=step)

    dataset = batches(tokens, following[:, 0])
    agree_in_loop(make, dataset, TWO, FIVE)


def normalised(synchronized: bool) -> keras.Model:
    return sequential(
        (8,),
        layers.Dense(8, use_bias=False),
        layers.BatchNormalization(momentum=0.8, synchronized=synchronized),
        layers.Dense(4),
    )


@pytest.mark.long
def test_batchnorm_synchronized() -> None:
    make = classifier(lambda: normalised(True))
    agree_in_loop(make, batches(*tabular(75)), TWO, THREE)


@pytest.mark.long
def test_batchnorm_not_synchronized() -> None:
    """The moving statistics of a first step are those of the whole batch all the same."""
    x, y = tabular(19)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = sequential((8,), layers.BatchNormalization(momentum=0.8), layers.Dense(4))
            optimizer = keras.optimizers.SGD(0.0)
        step = train_step(model, optimizer, CROSS_ENTROPY)
        parts = Parts(model=model, optimizers=(optimizer,), step=step)
        run_loop(place, parts, batches(x, y), epochs=2)
        bn = model.layers[0]
        return {"mean": bn.moving_mean.numpy(), "variance": bn.moving_variance.numpy()}

    agree(experiment, EVEN, TWO, Layout(num_devices=5))


@pytest.mark.long
def test_a_frozen_batchnorm() -> None:
    """One that is not trained changes nothing and normalises by its moving statistics."""

    def build() -> keras.Model:
        model = normalised(False)
        model.layers[1].trainable = False
        return model

    make = classifier(build)
    agree_in_loop(make, batches(*tabular(75)), TWO)


@pytest.mark.long
def test_frozen_layers() -> None:
    def build() -> keras.Model:
        model = mlp()
        model.layers[0].trainable = False
        return model

    make = classifier(build)
    agree_in_loop(make, batches(*tabular(75)), TWO)


@pytest.mark.long
def test_a_variable_without_a_gradient() -> None:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = layers.Dense(4), layers.Dense(3)
            self.used.build((None, 8))
            self.unused.build((None, 8))

        def call(self, x: Any) -> Any:
            return self.used(x)

    def experiment(place: Place) -> dict[str, object]:
        import warnings

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist")
            return loop_results(place, classifier(Model), batches(*tabular(75)))

    agree(experiment, TWO)


@pytest.mark.long
def test_a_counter_of_ones_own() -> None:
    x, y = tabular(75)

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)
        with place.scope():
            parts = classifier()()
            seen = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            steps = tf.Variable(
                0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )

        def step(x: Any, y: Any) -> Any:
            seen.assign_add(tf.shape(x, out_type=tf.int64)[0])
            steps.assign_add(1)
            return parts.step(x, y)

        @tf.function
        def train(batch: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)

        for batch in strategy.experimental_distribute_dataset(batches(x, y)):
            train(batch)
        return {**parts.state(), "seen": int(seen.numpy()), "steps": int(steps.numpy())}

    agree(experiment, TWO, FIVE)


@pytest.mark.long
def test_metrics() -> None:
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

    agree_in_loop(make, batches(x, labels), THREE)


@pytest.mark.long
def test_metrics_with_sample_weights() -> None:
    x, y = tabular(75)
    weights = unequal_weights(75)

    def make() -> Parts:
        model, optimizer = mlp(), sgd()
        metrics = (keras.metrics.SparseCategoricalAccuracy(),)
        step = train_step(model, optimizer, lambda y, p, w: CROSS_ENTROPY(y, p, w), metrics)
        return Parts(model=model, optimizers=(optimizer,), step=step, metrics=metrics)

    agree_in_loop(make, batches(x, y, weights), THREE)


@pytest.mark.long
def test_means() -> None:
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

    agree_in_loop(make, batches(x, y), THREE)


@pytest.mark.long
def test_a_mean_updated_outside_of_run() -> None:
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

    agree_in_loop(make, batches(x, y), THREE)


@pytest.mark.long
def test_two_optimizers_over_two_parts() -> None:
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

    agree_in_loop(make, batches(x, y), TWO, FIVE)


@pytest.mark.long
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_gan_with_two_tapes(reduction: str) -> None:
    """A generator against a discriminator; noise comes with the data, so that it is the same."""
    x = regression(75)[0]
    noise = np.random.default_rng(9).normal(size=(75, 3)).astype("float32")

    def make() -> Parts:
        generator = sequential((3,), layers.Dense(8, activation="tanh"), layers.Dense(8))
        judge = sequential((8,), layers.Dense(8, activation="tanh"), layers.Dense(1))
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

    agree_in_loop(make, batches(x, noise), TWO, FIVE)


@pytest.mark.long
def test_gradients_accumulated_by_hand() -> None:
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
