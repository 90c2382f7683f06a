"""Tensors whose rows are all equal: found once each, however often they are read."""

from __future__ import annotations

import pytest
import tensorflow as tf

from evener.graph.ops.elementwise import has_equal_rows
from evener.graph.trace import trace_step


def last_of_chain(start: tf.Tensor, length: int) -> tf.Tensor:
    """Return a product whose factors are both made of the one before, and so on."""
    value = start
    for _ in range(length):
        value = value * (0.5 * value + value)
    return value


@pytest.mark.parametrize(("length", "is_certain"), [(1, True), (20, True), (400, False)])
def test_an_answer_does_not_take_time_for_each_path(length: int, is_certain: bool) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return last_of_chain(tf.zeros_like(x), length)

    traced = trace_step(step, [tf.TensorSpec([None, 3])], [0], autograph=False)
    assert has_equal_rows(traced.graph.outputs[0], 0) == is_certain


def test_samples_are_not_equal() -> None:
    traced = trace_step(
        lambda x: last_of_chain(x, 3), [tf.TensorSpec([None, 3])], [0], autograph=False
    )
    assert not has_equal_rows(traced.graph.outputs[0], 0)
