"""Positions that count the samples, and tensors whose rows are all equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from evener.graph.nodes import Tensor
from evener.graph.ops.elementwise import has_equal_rows
from evener.graph.ops.gathering import OwnRows, own_rows
from evener.graph.trace import trace_step
from unit.graph.ops.own_rows import numbers

FOUND: dict[str, tuple[Callable[[Any], Any], OwnRows]] = {
    "numbers": (numbers, OwnRows(axis=0, step=1, slack=0)),
    "numbers_times_ones": (
        lambda x: numbers(x)[:, None] * tf.ones_like(x[:, :2], tf.int32),
        OwnRows(axis=0, step=1, slack=0),
    ),
    "numbers_times_eights": (
        lambda x: numbers(x)[:, None] * [8, 8] + tf.argmax(x, 1, output_type=tf.int32)[:, None],
        OwnRows(axis=0, step=8, slack=3),
    ),
    "numbers_and_fours": (
        lambda x: 5 * numbers(x)[:, None] + tf.fill([1, tf.shape(x)[1]], 4),
        OwnRows(axis=0, step=5, slack=4),
    ),
    "twice_numbers_and_ones": (
        lambda x: 2 * numbers(x)[:, None] + tf.ones_like(x, tf.int32),
        OwnRows(axis=0, step=2, slack=1),
    ),
    "in_columns": (
        lambda x: numbers(x) + tf.transpose(tf.zeros_like(x[:, :2], tf.int32)),
        OwnRows(axis=1, step=1, slack=0),
    ),
    "in_rows_again": (
        lambda x: tf.transpose(numbers(x) + tf.transpose(tf.zeros_like(x[:, :2], tf.int32))),
        OwnRows(axis=0, step=1, slack=0),
    ),
    "stacked": (lambda x: tf.stack([numbers(x)]), OwnRows(axis=1, step=1, slack=0)),
}
NOT_FOUND: dict[str, Callable[[Any], Any]] = {
    "times_unlike_numbers": lambda x: numbers(x)[:, None] * [8, 1],
    "times_zeros": lambda x: numbers(x)[:, None] * [0, 0],
    "times_the_data": lambda x: numbers(x) * tf.argmax(x, 1, output_type=tf.int32),
    "plus_numbers": lambda x: numbers(x)[:, None] + numbers(x),
    "plus_the_data": lambda x: numbers(x) + tf.cast(x[:, 0], tf.int32),
    "of_two": lambda x: tf.stack([numbers(x), numbers(x)])[0] - 1,
}


def output_of(function: Callable[[Any], Any]) -> Tensor:
    step = trace_step(function, [tf.TensorSpec([None, 4])], [0], autograph=False)
    [output] = step.graph.outputs
    return output


@pytest.mark.parametrize("name", FOUND)
def test_positions_of_the_samples(name: str) -> None:
    function, expected = FOUND[name]
    own = own_rows(output_of(function))
    assert own is not None
    assert (own.axis, own.step) == (expected.axis, expected.step)
    assert own.slack >= expected.slack
    for size in (1, 2, 5):
        x = np.random.default_rng(size).normal(size=(size, 4)).astype("float32")
        made = np.moveaxis(function(tf.constant(x)).numpy(), own.axis, 0)
        for sample, of_sample in enumerate(np.split(made, size)):
            first = sample * own.step
            assert of_sample.min() >= first
            assert of_sample.max() <= first + own.slack


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_only_looks_like_positions_of_the_samples(name: str) -> None:
    assert own_rows(output_of(NOT_FOUND[name])) is None


def last_of_chain(start: tf.Tensor, length: int) -> tf.Tensor:
    """Return a product whose factors are both made of the one before, and so on."""
    value = start
    for _ in range(length):
        value = value * (0.5 * value + value)
    return value


@pytest.mark.parametrize(
    ("start", "length", "is_certain"),
    [
        (tf.zeros_like, 1, True),
        (tf.zeros_like, 20, True),
        (tf.zeros_like, 400, False),
        # Samples are not equal.
        (tf.identity, 3, False),
    ],
)
def test_equal_rows_are_found_without_time_for_each_path(
    start: Callable[[Any], Any], length: int, is_certain: bool
) -> None:
    output = output_of(lambda x: last_of_chain(start(x), length))
    assert has_equal_rows(output, 0) == is_certain
