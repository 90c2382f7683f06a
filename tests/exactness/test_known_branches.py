"""Conditions on ranks and sizes that are asked in the graph, with gradients, against one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.graph.trace import trace_step

from .test_written_steps import PLANS

Step = Callable[[Any], Any]
CONSTANT: dict[str, Step] = {
    "by_rank": lambda x: tf.cond(tf.rank(x) == 0, lambda: x, lambda: tf.tanh(x) * x),
    "either": lambda x: tf.cond(
        tf.logical_or(tf.rank(x) == 0, tf.shape(x)[1] == 3),
        lambda: tf.exp(x),
        lambda: tf.nn.softmax(x, 0),
    ),
    "neither": lambda x: tf.cond(
        tf.logical_not(tf.logical_and(tf.rank(x) == 2, tf.shape(x)[0] > 4)),
        lambda: tf.sin(x),
        lambda: tf.cos(x) * tf.reduce_mean(x),
    ),
    "one_in_another": lambda x: tf.cond(
        tf.rank(x) == 2,
        lambda: tf.cond(tf.shape(x)[1] < 2, lambda: x, lambda: tf.square(x) * tf.sin(x)),
        lambda: -x,
    ),
}
IN_BATCH = {"neither"}
"""Those whose answer depends on the size of the batch, which is 9, or 2."""


def with_gradient(step: Step) -> Step:
    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = step(x)
        return y, tape.gradient(y, x)

    return both


@pytest.mark.parametrize("plan", ["5", "cut"])
@pytest.mark.parametrize("name", CONSTANT)
def test_equals_one_device(name: str, plan: str) -> None:
    step = with_gradient(CONSTANT[name])
    actual = evener.distribute(step, plan=PLANS[plan])
    for size in (9, 2):
        x = tf.constant(np.random.default_rng(size).normal(size=[size, 3]))
        for left, right in zip(tf.function(step)(x), actual(x), strict=True):
            np.testing.assert_allclose(right, left, rtol=1e-9, atol=1e-12)
    if name not in IN_BATCH:
        assert not actual.report().gathered


@pytest.mark.parametrize("name", CONSTANT)
def test_the_branch_that_is_taken_is_there_alone(name: str) -> None:
    specs = [tf.TensorSpec([None, 3], tf.float64)]
    graph = trace_step(with_gradient(CONSTANT[name]), specs, (0,), autograph=True).graph
    ops = [node.op for node in graph]
    assert any("If" in op for op in ops) == (name in IN_BATCH)
    assert ("OptionalGetValue" in ops) is False
