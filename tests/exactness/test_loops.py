"""Custom loops: their batches, their forms, shares that change, evaluation and checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from .candidates import OneDevice, Place, make_candidate
from .compare import assert_equal
from .harness import CHANGES, FIVE, THREE, TWO, Layout, agree, eager_functions, sgd, start, usually
from .loops import (
    CROSS_ENTROPY,
    Parts,
    agree_in_loop,
    batches,
    calls_of,
    classifier,
    evaluate_loop,
    loop_results,
    nested_parts,
    predict_loop,
    run_loop,
    saying,
    train_step,
)
from .models import BY_NAME, OPTIMIZERS, mlp, pictures, sequential, tabular


@pytest.mark.long
@pytest.mark.parametrize("samples", [17, 18, 19])
def test_batches_smaller_than_the_replicas(samples: int) -> None:
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
    return sequential(
        (8, 8, 1),
        layers.Conv2D(4, 3, activation="tanh"),
        layers.MaxPooling2D(),
        layers.Conv2D(6, 2, activation="tanh"),
        layers.Flatten(),
        layers.Dense(4),
    )


@pytest.mark.long
def test_convolutions_without_samples() -> None:
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
    agree_in_loop(classifier(), dataset, TWO, FIVE)


@pytest.mark.long
def test_one_argument_for_the_batch() -> None:
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


@pytest.mark.long
def test_iterator_in_a_function() -> None:
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

        with eager_functions():
            make = classifier(case.build, accuracy)
            return loop_results(place, make, batches(x, y), epochs=2)

    with saying("ENG-086"):
        agree(experiment, THREE)


@pytest.mark.long
def test_run_outside_of_a_function() -> None:
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

    agree_in_loop(make, batches(x, y), TWO, FIVE)


@pytest.mark.long
def test_the_loss_in_a_nested_function() -> None:
    x, y = tabular(75)

    agree_in_loop(nested_parts, batches(x, y), TWO, FIVE)


def test_shares_change_without_retracing() -> None:
    """Shares change before every batch; the function is traced as often as on one device."""
    dataset = batches(*tabular(80)).repeat(4)
    traces: list[int] = []

    def experiment(place: Place) -> dict[str, object]:
        layout = (
            None if isinstance(place, OneDevice) else Layout(num_devices=3, by_batch=CHANGES[3])
        )
        with place.scope():
            parts = classifier()()
        log = run_loop(place, parts, dataset, epochs=1, layout=layout)
        # One device computes operation by operation.
        if not isinstance(place, OneDevice):
            traces.append(log.num_traces)
        return {**parts.state(), **log.results()}

    agree(experiment, Layout(num_devices=3))
    assert traces and max(traces) <= 2


@pytest.mark.long
@pytest.mark.parametrize("shares", ["even", (5, 3, 1)])
def test_partial_batches_are_traced_once(shares: Any) -> None:
    start()
    place = make_candidate(3, shares)
    with place.scope():
        parts = classifier()()
    log = run_loop(place, parts, batches(*tabular(75)), epochs=3)
    assert log.num_traces <= 2


@pytest.mark.long
def test_measured_shares() -> None:
    """The default: shares follow the times of the devices, and nothing is traced for it."""
    dataset = batches(*tabular(75))
    traces: list[int] = []

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            parts = classifier()()
        log = run_loop(place, parts, dataset, epochs=4)
        # One device computes operation by operation.
        if not isinstance(place, OneDevice):
            traces.append(log.num_traces)
        return {**parts.state(), **log.results()}

    agree(experiment, Layout(num_devices=2, shares=None))
    # As on one device: the first step twice, as it makes variables, and one for the partial batch.
    assert traces and max(traces) <= 3


@pytest.mark.covering(1)
@pytest.mark.long
@pytest.mark.parametrize("owners", ["central", {"*kernel": "cpu:2", "*": "host"}])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_owners(owners: Any, optimizer: str) -> None:
    from evener.strategy import Strategy

    def make_place(num_devices: int, shares: Any) -> Place:
        return Strategy(
            devices=[f"cpu:{k}" for k in range(num_devices)], shares=shares, owners=owners
        )

    def make() -> Parts:
        model, made = mlp(), OPTIMIZERS[optimizer]()
        step = train_step(model, made, CROSS_ENTROPY)
        return Parts(model=model, optimizers=(made,), step=step)

    dataset = batches(*tabular(75))
    agree_in_loop(make, dataset, THREE, make_place=make_place)


@pytest.mark.long
def test_evaluation_and_prediction() -> None:
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


@pytest.mark.long
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

    single = [OneDevice() for _ in range(3)]
    several: list[Place] = [make_candidate(3, (5, 3, 1)), OneDevice(), make_candidate(2, (1, 4))]
    assert_equal(train(single, "one"), train(several, "several"), within=1e-5, where="3-1-2")
