"""An error that says that memory ran out tells what fills it, and what makes it less."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener import Plan

pytestmark = pytest.mark.usefixtures("logical_cpus")
DEVICES = ["cpu:1", "cpu:2"]


def enormous(x: Any) -> Any:
    """Return what nobody has the memory for: 280 TB per sample."""
    hidden = tf.cast(tf.reduce_sum(x) * 0, tf.int32)  # else TensorFlow computes it beforehand
    ones = tf.fill([tf.shape(x)[0], 2**23, hidden + 2**23], 1.0)
    return x + tf.reduce_sum(ones, axis=[1, 2])[:, None]


class Enormous(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return enormous(inputs)


def fit() -> None:
    strategy = evener.Strategy(devices=DEVICES, shares=[3, 1])
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Enormous()])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 4)), np.ones((8, 4)), verbose=0)


def call(run: Any) -> None:
    with tf.device("cpu:1"):
        weight = tf.Variable(tf.ones([4, 4]))
    run(lambda x: enormous(x @ weight))(tf.ones([8, 4]))


def by_distribute(step: Any) -> Any:
    return evener.distribute(step, devices=DEVICES, shares=[3, 1])


def by_run(step: Any) -> Any:
    strategy = evener.Strategy(devices=DEVICES, shares=[3, 1])
    return lambda x: strategy.run(tf.function(step), args=(x,))


# TensorFlow waits for ten seconds for each device, in case that memory becomes free.
@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    [fit, lambda: call(by_distribute), lambda: call(by_run)],
    ids=["fit", "distribute", "run"],
)
def test_a_note_says_what_fills_the_device(way: Any) -> None:
    with pytest.raises(tf.errors.ResourceExhaustedError) as raised:
        way()
    [note] = raised.value.__notes__
    device = "cpu:1" if "[ENG-050] cpu:1 ran out" in note else "cpu:2"
    assert f"[ENG-050] {device} ran out of memory in a step." in note
    assert f"activations of its {75 if device == 'cpu:1' else 25}% of every batch" in note
    assert "Plan.data_parallel(['cpu:1', 'cpu:2'], num_micro_batches=4)" in note
    # What it advises can be written so.
    assert Plan.data_parallel(DEVICES, num_micro_batches=4).is_scheduled


def test_other_errors_have_no_note() -> None:
    @evener.distribute(devices=DEVICES)
    def step(x: Any) -> Any:
        return tf.debugging.check_numerics(x, "no number")

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        step(tf.constant([np.nan, 1.0]))
    assert not getattr(raised.value, "__notes__", [])
