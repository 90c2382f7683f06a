"""What custom loops must go together with, held against the same loop on one device."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from .candidates import OneDevice, Place, make_candidate
from .compare import assert_equal
from .harness import CHANGES, FIVE, THREE, TWO, Layout, agree, sgd, start, unequal_weights
from .loops import (
    Parts,
    batches,
    calls_of,
    evaluate_loop,
    loop_results,
    predict_loop,
    run_loop,
    train_step,
)
from .models import BY_NAME, mlp, pictures, regression, sentences, series, tabular
from .optimizers import OPTIMIZERS
from .test_loop_losses import saying

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
EVEN = Layout(num_devices=2)


def classifier(
    build: Callable[[], keras.Model] = mlp,
    metrics: Callable[[], tuple[keras.Metric, ...]] = lambda: (),
) -> Callable[[], Parts]:
    """Return what makes a loop that trains a classifier with SGD and logs its loss."""

    def make() -> Parts:
        model, optimizer = build(), sgd()
        tracked = (keras.metrics.Mean(name="loss"), *metrics())
        step = train_step(model, optimizer, CROSS_ENTROPY, tracked)
        return Parts(model=model, optimizers=(optimizer,), step=step, metrics=tracked)

    return make


def loop_of(place: Place) -> dict[str, object]:
    """Train a classifier: ten steps, with partial batches."""
    return loop_results(place, classifier(), batches(*tabular(75)))


# --- batches


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
                model=model,
                optimizers=(optimizer,),
                step=train_step(model, optimizer, loss),
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


def test_whole_batches_alone() -> None:
    """A dataset that drops the remainder: every size is known while tracing."""
    x, y = tabular(75)
    dataset = batches(x, y, drop_remainder=True)
    agree(lambda place: loop_results(place, classifier(), dataset), TWO, FIVE)


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
                model=parts.model,
                optimizers=parts.optimizers,
                step=step,
                metrics=parts.metrics,
            )

        dataset = dataset.map(lambda batch: (batch,))
        return loop_results(place, make, dataset)

    agree(experiment, TWO)


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


# --- how the loop is written


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


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Run `tf.function`s as Python."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("name", ["mlp", "transformer", "cnn"])
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

    with saying("ENG-061"):
        agree(experiment, THREE)


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

    with saying("ENG-061"):
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


def test_shares_change_without_retracing() -> None:
    """Shares change before every batch; the function is traced as often as without."""
    dataset = batches(*tabular(80)).repeat(4)
    traces = {}

    def experiment(place: Place) -> dict[str, object]:
        layout = (
            None if isinstance(place, OneDevice) else Layout(num_devices=3, by_batch=CHANGES[3])
        )
        with place.scope():
            parts = classifier()()
        log = run_loop(place, parts, dataset, epochs=1, layout=layout)
        traces[type(place)] = log.num_traces
        return {**parts.state(), **log.results()}

    agree(experiment, Layout(num_devices=3))
    assert max(traces.values()) <= 2, traces


@pytest.mark.parametrize("shares", ["even", (5, 3, 1)])
def test_partial_batches_are_traced_once(shares: Any) -> None:
    """Whatever the shares: once for whole batches, once for partial ones at most."""
    start()
    place = make_candidate(3, shares)
    with place.scope():
        parts = classifier()()
    log = run_loop(place, parts, batches(*tabular(75)), epochs=3)
    assert log.num_traces <= 2


def test_measured_shares() -> None:
    """The default: shares follow the times of the devices, and nothing is traced for it."""
    dataset = batches(*tabular(75))
    traces = {}

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            parts = classifier()()
        log = run_loop(place, parts, dataset, epochs=4)
        traces[type(place)] = log.num_traces
        return {**parts.state(), **log.results()}

    agree(experiment, Layout(num_devices=2, shares=None))
    # One device: the first step twice, as it makes variables, and one for the partial batch.
    assert max(traces.values()) <= 3, traces


@pytest.mark.parametrize("owners", ["central", {"*kernel": "cpu:2", "*": "host"}])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_owners(owners: Any, optimizer: str) -> None:
    """Weights on the host, or on a device of their own."""
    from evener.engine import Strategy

    def make_place(num_devices: int, shares: Any) -> Place:
        return Strategy(
            devices=[f"cpu:{k}" for k in range(num_devices)], shares=shares, owners=owners
        )

    def make() -> Parts:
        model, made = mlp(), OPTIMIZERS[optimizer]()
        step = train_step(model, made, CROSS_ENTROPY)
        return Parts(model=model, optimizers=(made,), step=step)

    dataset = batches(*tabular(75))
    agree(lambda place: loop_results(place, make, dataset), THREE, make_place=make_place)


# --- models


class Positions(layers.Layer):
    """An embedding of places: its slices are as many as places, whatever the batch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = layers.Embedding(6, 3, name="table")

    def call(self, x: Any) -> Any:
        """Add the embedding of every place."""
        return x + self.table(tf.range(6))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "lion"])
def test_slices_that_do_not_grow_with_the_batch(optimizer: str) -> None:
    """Optimizers square slices one by one, so those of two shares must be one slice."""

    def make() -> Parts:
        model = keras.Sequential(
            [keras.Input((6, 3)), Positions(name="places"), layers.LSTM(4), layers.Dense(1)]
        )
        made = OPTIMIZERS[optimizer]()
        step = train_step(model, made, keras.losses.MeanSquaredError())
        return Parts(model=model, optimizers=(made,), step=step)

    agree(lambda place: loop_results(place, make, batches(*series(75))), TWO, FIVE)


@pytest.mark.parametrize("clip", [None, "clipnorm", "global_clipnorm"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_embeddings(optimizer: str, clip: str | None) -> None:
    """Slices of tokens that several shares have in common, clipped or not."""
    tokens, following = sentences(75)
    kinds = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}

    def make() -> Parts:
        model = keras.Sequential(
            [
                keras.Input((8,), dtype="int32"),
                layers.Embedding(20, 6),
                layers.GlobalAveragePooling1D(),
                layers.Dense(20),
            ]
        )
        more: dict[str, Any] = {clip: 0.05} if clip else {}
        if optimizer == "adam":
            more["epsilon"] = 1e-3
        made = kinds[optimizer](0.05, **more)
        step = train_step(model, made, CROSS_ENTROPY)
        return Parts(model=model, optimizers=(made,), step=step)

    dataset = batches(tokens, following[:, 0])
    agree(lambda place: loop_results(place, make, dataset), TWO, FIVE)


def normalised(synchronized: bool) -> keras.Model:
    """Return a model with a BatchNormalization."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(8, use_bias=False),
            layers.BatchNormalization(momentum=0.8, synchronized=synchronized),
            layers.Dense(4),
        ]
    )


def test_batchnorm_synchronized() -> None:
    """Mean and variance of the whole batch."""
    make = classifier(lambda: normalised(True))
    agree(lambda place: loop_results(place, make, batches(*tabular(75))), TWO, THREE)


@pytest.mark.parametrize("layout", [EVEN, TWO, Layout(num_devices=5)], ids=str)
def test_batchnorm_not_synchronized(layout: Layout) -> None:
    """The moving statistics of a first step are those of the whole batch all the same."""
    x, y = tabular(19)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = keras.Sequential(
                [keras.Input((8,)), layers.BatchNormalization(momentum=0.8), layers.Dense(4)]
            )
            optimizer = keras.optimizers.SGD(0.0)
        step = train_step(model, optimizer, CROSS_ENTROPY)
        parts = Parts(model=model, optimizers=(optimizer,), step=step)
        run_loop(place, parts, batches(x, y), epochs=2)
        bn = model.layers[0]
        return {"mean": bn.moving_mean.numpy(), "variance": bn.moving_variance.numpy()}

    agree(experiment, layout)


def test_a_frozen_batchnorm() -> None:
    """One that is not trained changes nothing and normalises by its moving statistics."""

    def build() -> keras.Model:
        model = normalised(False)
        model.layers[1].trainable = False
        return model

    make = classifier(build)
    agree(lambda place: loop_results(place, make, batches(*tabular(75))), TWO)


def test_frozen_layers() -> None:
    """Layers that are not trained stay as they are."""

    def build() -> keras.Model:
        model = mlp()
        model.layers[0].trainable = False
        return model

    make = classifier(build)
    agree(lambda place: loop_results(place, make, batches(*tabular(75))), TWO)


def test_a_variable_without_a_gradient() -> None:
    """A weight that the loss does not depend on: its gradient is None."""

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


def test_a_counter_of_ones_own() -> None:
    """A variable that a person adds to in the replica, and one that counts steps."""
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


# --- several models, optimizers and tapes


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
            for one, gradient in zip(
                sums, tape.gradient(loss, model.trainable_variables), strict=True
            ):
                one.assign_add(gradient)
            return loss

        def update() -> None:
            gradients = [one.read_value() for one in sums]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            for one in sums:
                one.assign(tf.zeros_like(one))

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
        return {**parts.state(), "losses": losses, "left": [one.numpy() for one in sums]}

    agree(experiment, TWO, FIVE)


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
                    tf.zeros(v.shape),
                    trainable=False,
                    aggregation=tf.VariableAggregation.SUM,
                )
                for v in model.trainable_variables
            ]

        def add(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = CROSS_ENTROPY(y, model(x, training=True)) / 2.0
            gradients = tape.gradient(loss, model.trainable_variables)
            for one, gradient in zip(sums, gradients, strict=True):
                one.assign_add(gradient)
            return loss

        @tf.function
        def accumulate(batch: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(add, args=batch), axis=None)

        @tf.function
        def update() -> None:
            optimizer.apply(list(sums), model.trainable_variables)
            for one in sums:
                one.assign(tf.zeros_like(one))

        losses = []
        for k, batch in enumerate(strategy.experimental_distribute_dataset(batches(x, y))):
            losses.append(float(accumulate(batch)))
            if k % 2 == 1:
                with place.scope() if in_scope else contextlib.nullcontext():
                    update()
        parts = Parts(model=model, optimizers=(optimizer,), step=add)
        return {**parts.state(), "losses": losses}

    agree(experiment, TWO)


# --- metrics


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


# --- evaluation, prediction, going on


def test_evaluation_and_prediction() -> None:
    """An evaluation in a loop, and predictions gathered in their order."""
    x, y = tabular(75)

    def experiment(place: Place) -> dict[str, object]:
        def metrics() -> tuple[keras.Metric, ...]:
            return (keras.metrics.SparseCategoricalAccuracy(),)

        with place.scope():
            parts = classifier(metrics=metrics)()
        log = run_loop(place, parts, batches(x, y))
        return {
            **log.results(),
            "evaluate": evaluate_loop(place, parts, batches(x, y, batch=20)),
            "predict": predict_loop(place, parts.model, x[:33]),
            "tiny": predict_loop(place, parts.model, x[:3], batch=2),
        }

    agree(experiment, TWO, FIVE)


def test_a_checkpoint_goes_on_on_other_devices(tmp_path: Path) -> None:
    """`tf.train.Checkpoint` in mid-training, restored on another number of devices."""
    x, y = tabular(75)

    def make() -> Parts:
        model, optimizer = mlp(), OPTIMIZERS["adam"]()
        optimizer.build(model.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        step = train_step(model, optimizer, CROSS_ENTROPY, [accuracy])
        return Parts(model=model, optimizers=(optimizer,), step=step, metrics=(accuracy,))

    def train(places: list[Place], name: str) -> dict[str, object]:
        path, results = None, {}
        for number, place in enumerate(places):
            start()
            with place.scope():
                parts = make()
                checkpoint = tf.train.Checkpoint(model=parts.model, optimizer=parts.optimizers[0])
            if path:
                checkpoint.restore(path).assert_existing_objects_matched()
            log = run_loop(place, parts, batches(x, y), epochs=1)
            path = checkpoint.save(str(tmp_path / f"{name}-{number}"))
            results = {**parts.state(), **log.results()}
        return results

    one = [OneDevice() for _ in range(3)]
    several: list[Place] = [make_candidate(3, (5, 3, 1)), OneDevice(), make_candidate(2, (1, 4))]
    assert_equal(train(one, "one"), train(several, "several"), within=1e-5, where="3-1-2")
