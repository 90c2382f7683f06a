"""Draws from generators whose state is in a kernel."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from evener.engine.trace.draws import has_hidden_draws
from evener.engine.trace.step import trace_step
from evener.errors import EngineError


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


def test_draws_of_a_step_are_not_hidden() -> None:
    assert not has_hidden_draws(graph_of(lambda x: tf.random.normal([2]) + tf.reduce_sum(x)))


def test_draws_in_a_loop_are_hidden() -> None:
    assert has_hidden_draws(graph_of(in_a_loop(3)))


def test_draws_in_a_loop_without_a_seed() -> None:
    with pytest.raises(EngineError, match="ENG-097"):
        has_hidden_draws(graph_of(in_a_loop(0)))
