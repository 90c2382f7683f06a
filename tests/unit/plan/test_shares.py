"""Splitting a batch by shares."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.plan import check_shares, split_batch
from unit.plan.strategies import share_lists

any_shares = st.integers(1, 12).flatmap(share_lists)
batches = st.integers(0, 100_000) | st.integers(0, 2**50)


@pytest.mark.parametrize(
    ("num_samples", "shares", "sizes"),
    [
        (512, [320, 192], (320, 192)),
        (512, [0.625, 0.375], (320, 192)),
        (10, [1, 1, 1], (3, 4, 3)),
        (0, [1, 2], (0, 0)),
        (1, [1, 1], (1, 0)),
        (1, [1, 1, 1], (0, 1, 0)),
        (2, [1, 1, 1], (1, 0, 1)),
        (1, [0.4, 0.6], (0, 1)),
        (7, [0, 1, 0], (0, 7, 0)),
        (7, [0.0, 3e-320], (0, 7)),
        (5, [1e100, 1e100], (3, 2)),
        (100, [0.7, 0.2, 0.1], (70, 20, 10)),
    ],
)
def test_split_literally(num_samples: int, shares: list[float], sizes: tuple[int, ...]) -> None:
    assert split_batch(num_samples, shares) == sizes


@settings(max_examples=200)
@given(batches, any_shares)
def test_sizes_add_up_exactly(num_samples: int, shares: list[float]) -> None:
    sizes = split_batch(num_samples, shares)
    assert sum(sizes) == num_samples
    assert min(sizes) >= 0
    assert len(sizes) == len(shares)


@settings(max_examples=200)
@given(st.integers(0, 100_000), any_shares)
def test_each_size_is_within_one_of_ideal(num_samples: int, shares: list[float]) -> None:
    total = math.fsum(shares)
    for size, share in zip(split_batch(num_samples, shares), shares, strict=True):
        assert abs(size - num_samples * share / total) <= 1 + 1e-9


@settings(max_examples=200)
@given(batches, any_shares)
def test_zero_shares_get_no_sample(num_samples: int, shares: list[float]) -> None:
    for size, share in zip(split_batch(num_samples, shares), shares, strict=True):
        assert size == 0 or share > 0


@settings(max_examples=200)
@given(batches, st.integers(0, 1000), any_shares)
def test_cuts_are_monotone_in_num_samples(fewer: int, more: int, shares: list[float]) -> None:
    larger = min(fewer + more, 2**50)
    before = itertools.accumulate(split_batch(fewer, shares))
    after = itertools.accumulate(split_batch(larger, shares))
    assert all(cut <= later for cut, later in zip(before, after, strict=True))


@given(st.integers(0, 2**50), st.lists(st.integers(0, 2**30), min_size=1, max_size=8))
def test_shares_that_are_sizes_are_kept(_: int, sizes: list[int]) -> None:
    if any(sizes):
        assert split_batch(sum(sizes), sizes) == tuple(sizes)


@given(any_shares)
def test_checked_shares_are_equal_doubles(shares: list[float]) -> None:
    checked = check_shares(shares, num_expected=len(shares))
    assert checked == tuple(shares)
    assert all(type(share) is float for share in checked)
