"""Models in custom loops: embeddings, BatchNormalization, frozen layers, own variables."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from .candidates import Place
from .harness import FIVE, THREE, TWO, Layout, agree
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
from .models import mlp, sentences, series, tabular
from .optimizers import OPTIMIZERS

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
        model = keras.Sequential(
            [keras.Input((6, 3)), Positions(name="places"), layers.LSTM(4), layers.Dense(1)]
        )
        made = OPTIMIZERS["adam"]()
        step = train_step(model, made, keras.losses.MeanSquaredError())
        return Parts(model=model, optimizers=(made,), step=step)

    agree(lambda place: loop_results(place, make, batches(*series(75))), TWO, FIVE)


@pytest.mark.covering(1)
@pytest.mark.long
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


@pytest.mark.long
def test_batchnorm_synchronized() -> None:
    """Mean and variance of the whole batch."""
    make = classifier(lambda: normalised(True))
    agree(lambda place: loop_results(place, make, batches(*tabular(75))), TWO, THREE)


@pytest.mark.long
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


@pytest.mark.long
def test_a_frozen_batchnorm() -> None:
    """One that is not trained changes nothing and normalises by its moving statistics."""

    def build() -> keras.Model:
        model = normalised(False)
        model.layers[1].trainable = False
        return model

    make = classifier(build)
    agree(lambda place: loop_results(place, make, batches(*tabular(75))), TWO)


@pytest.mark.long
def test_frozen_layers() -> None:
    """Layers that are not trained stay as they are."""

    def build() -> keras.Model:
        model = mlp()
        model.layers[0].trainable = False
        return model

    make = classifier(build)
    agree(lambda place: loop_results(place, make, batches(*tabular(75))), TWO)


@pytest.mark.long
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


@pytest.mark.long
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
