"""What follows a gathered operation is computed in parts where it is heavy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.engine.sharding.propagate import propagate
from evener.engine.sharding.states import Sharded
from evener.engine.trace.step import trace_step

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(4, 3)).astype("float32")


def product(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.reverse(x, [0]) + 1.0, weights)


def convolution(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    ordered = tf.gather(x, tf.argsort(x[:, 0]))
    return tf.nn.conv1d(tf.tanh(ordered)[:, None], weights[None], 1, "SAME")


def mixed(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.sort(x, 0) * 2.0, weights) + tf.reduce_sum(x)


def of_all(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.matmul(tf.reverse(x, [0]), x, transpose_a=True), weights)


STEPS: list[tuple[Any, str]] = [(product, "MatMul"), (convolution, "Conv2D"), (mixed, "MatMul")]


@pytest.mark.parametrize(("function", "heavy"), STEPS)
def test_what_is_heavy_goes_back(function: Any, heavy: str) -> None:
    step = trace_step(
        function, [tf.TensorSpec([None, 4]), tf.TensorSpec([4, 3])], [0, None], autograph=False
    )
    states = {step.graph.inputs[0]: Sharded(0)}
    sharding = propagate(step.graph, states, step.inference.symbols)
    of_op = {node.op: node in sharding.decisions for node in step.graph}
    assert of_op[heavy]
    # What is cheap stays where its input is.
    assert not of_op.get("Tanh", False) and not of_op.get("Mul", False)


@pytest.mark.parametrize("function", [product, convolution, mixed, of_all])
@pytest.mark.parametrize("shares", [[4, 0, 3], [0, 1, 0]])
def test_values_and_gradients(function: Any, shares: list[int]) -> None:
    def step(x: tf.Tensor, weights: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            loss = tf.reduce_sum(tf.tanh(function(x, weights)) ** 2)
        gradients = tape.gradient(loss, [x, weights])
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    x = tf.constant(RNG.normal(size=(sum(shares), 4)), tf.float32)
    step = tf.autograph.experimental.do_not_convert(step)
    devices = ["cpu:0", "cpu:1", "cpu:2"]
    parts = evener.distribute(step, devices=devices, shares=shares, in_axes=(0, None))
    weights = tf.constant(WEIGHTS)
    given = tf.nest.flatten(parts(x, weights))
    expected = tf.nest.flatten(tf.function(step)(x, weights))
    for one, other in zip(given, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
