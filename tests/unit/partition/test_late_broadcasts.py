"""Elementwise work on tensors that are broadcast is done before, with the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from evener.graph.ops.states import Sharded
from evener.partition.emit import PartitionedStep
from unit.partition.steps import partitioned, run, tasks_of

SIZES = [(2, 1, 3), (0, 4, 2), (1, 0, 0)]
SHAPE = (6, 4, 3)


def checked(function: Callable[..., Any], *, dtype: tf.DType = tf.float32) -> PartitionedStep:
    """Compare a step with the function itself on one device; return the step."""
    step = partitioned(function, [None, *SHAPE[1:]], dtype=dtype)
    rng = np.random.default_rng(5)
    for sizes in SIZES:
        x = tf.cast(rng.normal(1.0, 9.0, size=(sum(sizes), *SHAPE[1:])), dtype)
        pairs = zip(run(step, sizes, [x], []), tf.nest.flatten(function(x)), strict=True)
        for given, expected in pairs:
            np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-4, err_msg=str(sizes))
    return step


def of_samples(step: PartitionedStep) -> Counter[str]:
    """Return the operations whose result has the rows of the samples."""
    states = step.partition.sharding.states
    nodes = [n for task in step.partition.tasks for n in task.nodes if n.op != "Identity"]
    return Counter(n.op for n in nodes if any(isinstance(states[t], Sharded) for t in n.outputs))


def like(x: tf.Tensor, small: tf.Tensor) -> tf.Tensor:
    return tf.broadcast_to(small, tf.shape(x))


def per_channel(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x, [0, 1])


def gradient_of_a_mean(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        mean = tf.reduce_mean(x, [0, 1])
        loss = tf.reduce_sum(mean * tf.constant([1.0, 2.0, 3.0]))
    return x + 3.0 * tape.gradient(loss, x)


def several_small(x: tf.Tensor) -> tf.Tensor:
    """They are added before they are broadcast."""
    small = [per_channel(x), tf.reduce_max(x, [0, 1]), tf.reduce_min(x, [0])]
    return tf.add_n([like(x, small[0]), x, like(x, small[1]), like(x, small[2])])


def read_by_others(x: tf.Tensor) -> Any:
    seen = like(x, per_channel(x))
    return seen * x, tf.cumsum(seen, 1)


REMAINING: dict[str, tuple[Callable[..., Any], dict[str, int]]] = {
    "gradient": (gradient_of_a_mean, {"AddV2": 1}),
    "several": (several_small, {"AddV2": 1}),
    "unary": (lambda x: -like(x, per_channel(x)), {"BroadcastTo": 1}),
    "pair": (lambda x: like(x, per_channel(x)) * like(x, tf.reduce_max(x, 0)), {"BroadcastTo": 1}),
    "scalars": (lambda x: 2.0 - like(x, per_channel(x)) / 7.0, {"BroadcastTo": 1}),
    "tile": (
        lambda x: x / tf.tile(per_channel(x)[None, None], [tf.shape(x)[0], 4, 1]),
        {"RealDiv": 1},
    ),
    "per_sample": (
        lambda x: like(x, tf.reduce_sum(x, 2, keepdims=True)) * x,
        {"Sum": 1, "Mul": 1},
    ),
    "sum_of_two": (lambda x: tf.add_n([x, like(x, per_channel(x))]), {"AddV2": 1}),
    "sum_of_three": (
        lambda x: tf.add_n([x, like(x, per_channel(x)), x * x]),
        {"Mul": 1, "AddN": 1, "AddV2": 1},
    ),
    "read_by_others": (read_by_others, {"BroadcastTo": 1, "Mul": 1, "Cumsum": 1}),
    # What XLA compiles is left to it.
    "compiled": (
        tf.function(lambda x: like(x, per_channel(x)) * x, jit_compile=True),
        {"BroadcastTo": 1, "Mul": 1},
    ),
}


@pytest.mark.parametrize("name", REMAINING)
def test_what_remains_of_the_size_of_the_samples(name: str) -> None:
    function, remaining = REMAINING[name]
    assert of_samples(checked(function)) == remaining


def test_integers_are_left_as_they_are() -> None:
    """A division of no samples does not fail; a division of the number for all of them might."""

    def function(x: tf.Tensor) -> tf.Tensor:
        return like(x, tf.reduce_max(x, [0, 1])) // (x * 0 + 3)

    assert of_samples(checked(function, dtype=tf.int32))["BroadcastTo"] == 1


def test_a_size_that_may_be_one_is_broadcast() -> None:
    """Nobody knows the number of rows, which is that of the samples or 1."""

    def function(x: tf.Tensor) -> tf.Tensor:
        rows = tf.size(tf.where(x[:, 0, 0] > -1e9))
        small = tf.ones([tf.maximum(rows // 100, 1), 1, 1])
        return like(x, small) + x * 0.0

    assert tasks_of(checked(function), "BroadcastTo")
