"""The samples of each part are those of `evener.plan.split_batch`."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import given, settings

from evener.partition.tensors import part_sizes_in_graph
from evener.plan import split_batch

NUMBERS = st.one_of(st.integers(0, 7), st.floats(0.0, 1e3, width=32))
SHARES = st.lists(NUMBERS, min_size=1, max_size=6).filter(lambda shares: sum(shares) > 0)


@tf.function(autograph=False)
def by_tensor(num_samples: tf.Tensor, shares: tf.Tensor) -> tf.Tensor:
    return part_sizes_in_graph(num_samples, shares)


@settings(max_examples=100)
@given(st.integers(0, 100_000), SHARES)
def test_shares_in_a_tensor(num_samples: int, shares: list[float]) -> None:
    sizes = by_tensor(tf.constant(num_samples), tf.constant(shares, tf.float64))
    assert sizes.dtype == tf.int32
    assert tuple(sizes.numpy()) == split_batch(num_samples, shares)


@settings(max_examples=20)
@given(st.integers(0, 100_000), SHARES)
def test_shares_in_python(num_samples: int, shares: list[float]) -> None:
    sizes = part_sizes_in_graph(tf.constant(num_samples), shares)
    assert tuple(sizes.numpy()) == split_batch(num_samples, shares)


@pytest.mark.parametrize(
    ("num_samples", "shares", "sizes"),
    [
        (512, [5.0, 3.0], (320, 192)),
        (3, [1.0, 1.0], (2, 1)),
        (1, [1.0, 1.0, 1.0], (0, 1, 0)),
        (0, [1.0, 2.0], (0, 0)),
        (7, [0.0, 1.0, 0.0], (0, 7, 0)),
        (10, [0.1, 0.2, 0.7], (1, 2, 7)),
    ],
)
def test_sizes(num_samples: int, shares: list[float], sizes: tuple[int, ...]) -> None:
    found: Any = part_sizes_in_graph(tf.constant(num_samples), shares)
    assert tuple(found.numpy()) == sizes == split_batch(num_samples, shares)
