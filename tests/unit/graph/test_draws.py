"""Draws from generators whose state is in a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.errors import EngineError
from evener.graph.draws import has_hidden_draws
from evener.graph.trace import trace_step


def graph_of(step: Any) -> Any:
    spec = tf.TensorSpec([None, 3])
    return trace_step(tf.autograph.to_graph(step), [spec], (0,), autograph=True).graph


def in_a_loop(seed: int) -> Any:
    def step(x: tf.Tensor) -> tf.Tensor:
        total = tf.zeros([])
        for _ in tf.range(tf.shape(x)[0]):
            total += tf.raw_ops.RandomStandardNormal(
                shape=tf.constant([], tf.int32), dtype=tf.float32, seed=seed, seed2=seed
            )
        return total

    return step


def test_draws_in_a_loop_are_hidden_and_need_a_seed() -> None:
    assert not has_hidden_draws(graph_of(lambda x: tf.random.normal([2]) + tf.reduce_sum(x)))
    assert has_hidden_draws(graph_of(in_a_loop(3)))
    with pytest.raises(EngineError, match="ENG-097"):
        has_hidden_draws(graph_of(in_a_loop(0)))


DRAWN: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "half": lambda x: tf.random.uniform(tf.shape(x), dtype=tf.float16),
    "double": lambda x: tf.random.normal(tf.shape(x), dtype=tf.float64),
    "truncated": lambda x: tf.random.truncated_normal(tf.shape(x)),
    "whole numbers": lambda x: tf.random.uniform(tf.shape(x), -5, 900, tf.int64),
    "negative seed": lambda x: tf.raw_ops.RandomUniform(
        shape=tf.shape(x, tf.int64), dtype=tf.float32, seed=-3, seed2=-(2**62)
    ),
    "equal seeds": lambda x: tf.stack([tf.random.normal(tf.shape(x), seed=1) for _ in range(2)], 1),
}


@pytest.mark.parametrize("name", DRAWN)
def test_streams_outside_of_kernels_are_those_of_the_kernels(name: str) -> None:
    """Bit by bit, in two traces of the program that one trace serves."""
    tf.random.set_seed(5)
    devices = ["cpu:0", "cpu:1", "cpu:2"]
    step = evener.distribute(DRAWN[name], devices=devices, shares=[2, 0, 3])
    one_device = tf.function(DRAWN[name])
    for size in (7, 7, 4, 7, 4):
        x = tf.zeros([size, 3])
        np.testing.assert_array_equal(step(x), one_device(x))
    assert len(step.partitioned_steps) == 1
