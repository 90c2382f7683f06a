"""Custom loops that cannot be right are refused, or told of, before they train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import EngineError, EvenerWarning, Strategy

X = np.random.default_rng(0).normal(size=(8, 4)).astype("f4")


def strategy_of_two() -> Strategy:
    return Strategy(devices=["cpu:1", "cpu:2"], shares="even")


def refused(code: str, act: Callable[[], Any]) -> EngineError:
    with pytest.raises(EngineError) as caught:
        act()
    assert caught.value.code == code
    return caught.value


@pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN"])
def test_places_that_several_replicas_overwrite(aggregation: str) -> None:
    strategy = strategy_of_two()
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation[aggregation])

    def overwrite() -> None:
        variable.scatter_update(tf.IndexedSlices([5.0], [0]))

    refused("ENG-062", tf.function(lambda: strategy.run(overwrite)))
    np.testing.assert_array_equal(variable, [1.0, 2.0])


def test_a_sum_of_what_is_no_replicas_own() -> None:
    strategy = strategy_of_two()
    refused("ENG-063", lambda: strategy.reduce("SUM", tf.constant(3.0), axis=None))
    assert float(strategy.reduce("MEAN", tf.constant(3.0), axis=None)) == 3.0


def test_a_masked_loss_in_a_function_inside_the_replicas() -> None:
    strategy = strategy_of_two()
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
    dataset = tf.data.Dataset.from_tensor_slices(np.array([[1, 2, 0], [3, 0, 0]])).batch(2)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    with pytest.warns(EvenerWarning, match="ENG-065"):
        step(batch)


def test_whole_numbers_have_no_mean_to_be_kept() -> None:
    with strategy_of_two().scope():
        refused("ENG-068", lambda: tf.Variable(1, aggregation=tf.VariableAggregation.MEAN))


def test_one_pipeline_per_replica_of_a_dataset() -> None:
    mode = tf.distribute.InputReplicationMode.PER_REPLICA
    options = tf.distribute.InputOptions(experimental_replication_mode=mode)
    dataset = tf.data.Dataset.range(8).batch(4)
    strategy = strategy_of_two()
    refused("ENG-069", lambda: strategy.experimental_distribute_dataset(dataset, options))


def test_variables_of_no_synchronization() -> None:
    none = tf.VariableSynchronization.NONE
    with strategy_of_two().scope():
        refused("ENG-070", lambda: tf.Variable(1.0, synchronization=none))
