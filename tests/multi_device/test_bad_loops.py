"""Custom loops that several replicas could not agree about are right: there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import Strategy

from .mistakes import in_micro_batches, one_replica

MAKE = pytest.mark.parametrize("make", [one_replica, in_micro_batches])


@pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN"])
@MAKE
def test_places_that_one_replica_overwrites(make: Callable[[], Strategy], aggregation: str) -> None:
    strategy = make()
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation[aggregation])

    def overwrite(rows: tf.Tensor) -> None:
        variable.scatter_update(tf.IndexedSlices([tf.reduce_sum(rows)], [0]))

    strategy.run(tf.function(overwrite), args=(tf.ones([5]),))
    np.testing.assert_array_equal(variable, [5.0, 2.0])
    assert strategy.report().num_operations > 0


def masked_step(strategy: Strategy) -> tuple[keras.Model, keras.losses.Loss, Callable[..., Any]]:
    """Return a masked model, its loss, and a step with the loss in a function of its own."""
    with strategy.scope():
        model = keras.Sequential([
            keras.Input((3,)),
            layers.Embedding(5, 2, mask_zero=True),
            layers.Dense(1),
        ])  # fmt: skip
    loss_of = keras.losses.MeanSquaredError()

    @tf.function
    def inside(x: tf.Tensor) -> tf.Tensor:
        return loss_of(tf.zeros([tf.shape(x)[0], 3, 1]), model(x))

    step = tf.function(lambda x: strategy.run(lambda part: inside(part), args=(x,)))
    return model, loss_of, step


SENTENCES = np.array([[1, 2, 0], [3, 0, 0]])


def sentences(strategy: Strategy) -> Any:
    """Return the one batch of a distributed dataset."""
    dataset = tf.data.Dataset.from_tensor_slices(SENTENCES).batch(2)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    return batch


@MAKE
def test_a_masked_loss_in_a_function_inside_the_one_replica(make: Callable[[], Strategy]) -> None:
    strategy = make()
    model, loss_of, step = masked_step(strategy)
    # Three words of six count: a mean of the devices' means would be another number.
    plain = loss_of(tf.zeros([2, 3, 1]), model(SENTENCES))
    np.testing.assert_allclose(step(sentences(strategy)), plain, rtol=1e-5)
    assert strategy.report().num_operations > 0


@MAKE
def test_one_pipeline_per_replica_of_a_dataset(make: Callable[[], Strategy]) -> None:
    mode = tf.distribute.InputReplicationMode.PER_REPLICA
    options = tf.distribute.InputOptions(experimental_replication_mode=mode)
    dataset = tf.data.Dataset.range(8).batch(4)
    whole = make().experimental_distribute_dataset(dataset, options)
    assert [batch.numpy().tolist() for batch in whole] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    "options",
    [
        {"aggregation": tf.VariableAggregation.MEAN},
        {"synchronization": tf.VariableSynchronization.NONE},
    ],
    ids=["mean", "none"],
)
@MAKE
def test_whole_numbers_that_one_replica_keeps(
    make: Callable[[], Strategy], options: dict[str, Any]
) -> None:
    strategy = make()
    with strategy.scope():
        seen = tf.Variable(1, **options)

    def count(rows: tf.Tensor) -> tf.Tensor:
        return seen.assign_add(tf.reduce_sum(rows))

    assert int(strategy.run(tf.function(count), args=(tf.ones([5], tf.int32),))) == 6
    assert int(seen) == 6
