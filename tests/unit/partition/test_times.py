"""Busy seconds of a device, by the spans of its tasks."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given

from evener.partition.times import seconds_within

Span = tuple[float, float]


def within(*spans: Span) -> float:
    as_tensors = [tuple(tf.constant(x, tf.float64) for x in span) for span in spans]
    return float(seconds_within(as_tensors))


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([(1, 4)], 3),
        ([(1, 2), (3, 5)], 3),
        ([(1, 4), (2, 3)], 3),
        ([(2, 3), (1, 4)], 3),
        ([(1, 4), (1, 4)], 3),
        ([(1, 3), (2, 5), (4, 6), (8, 9)], 6),
    ],
)
def test_what_overlaps_counts_once(spans: list[Span], seconds: float) -> None:
    assert within(*spans) == pytest.approx(seconds)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=8))
def test_it_is_the_length_of_the_union(begins_and_lengths: list[tuple[int, int]]) -> None:
    spans = [(float(begin), float(begin + length)) for begin, length in begins_and_lengths]
    seconds = np.zeros(80, bool)
    for begin, end in spans:
        seconds[int(begin) : int(end)] = True
    assert within(*spans) == pytest.approx(seconds.sum())
