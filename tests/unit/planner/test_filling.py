"""Samples of each replica, compared with all ways to share them out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.planner.search import ReplicaClass, fill


def line(per_sample: float, start: float = 0.0, most: int = 1000) -> Callable[[int], float]:
    """Return seconds by samples: infinite above `most`."""

    def seconds(samples: int) -> float:
        if samples == 0:
            return 0.0
        return start + per_sample * samples if samples <= most else math.inf

    return seconds


def replica_class(
    per_sample: float, start: float = 0.0, most: int = 1000, count: int = 1
) -> ReplicaClass:
    seconds = line(per_sample, start, most)
    return ReplicaClass(seconds=seconds, compute_seconds=seconds, count=count)


def longest(seconds: Sequence[Callable[[int], float]], counts: Sequence[int]) -> float:
    return max(curve(count) for curve, count in zip(seconds, counts, strict=True))


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 5), st.sampled_from([0.0, 1.0]), st.integers(0, 9), st.integers(1, 2)
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 9),
)
def test_no_other_way_is_faster(
    drawn: list[tuple[float, float, int, int]], num_samples: int
) -> None:
    classes = [replica_class(*drawn_class) for drawn_class in drawn]
    each = [replicas.seconds for replicas in classes for _ in range(replicas.count)]
    all_ways = [
        ways
        for ways in itertools.product(range(num_samples + 1), repeat=len(each))
        if sum(ways) == num_samples
    ]
    least = min(longest(each, ways) for ways in all_ways)
    found = fill(classes, num_samples)
    if found is None:
        assert least == math.inf
    else:
        assert [len(of_class) for of_class in found] == [replicas.count for replicas in classes]
        counts = [count for of_class in found for count in of_class]
        assert sum(counts) == num_samples
        assert longest(each, counts) <= least * (1 + 1e-6)


@pytest.mark.parametrize(
    ("classes", "num_samples", "wanted"),
    [
        ([replica_class(1.0, count=3)], 8, [[2, 3, 3]]),
        ([replica_class(1.0), replica_class(3.0)], 8, [[6], [2]]),
        # Too slow for a single sample.
        ([replica_class(1.0), replica_class(100.0)], 8, [[8], [0]]),
        ([replica_class(1.0, most=3), replica_class(3.0)], 8, [[3], [5]]),
        ([replica_class(1.0, most=3), replica_class(3.0, most=4)], 8, None),
    ],
)
def test_shares_by_hand(
    classes: list[ReplicaClass], num_samples: int, wanted: list[list[int]] | None
) -> None:
    found = fill(classes, num_samples)
    assert (found and [sorted(of_class) for of_class in found]) == wanted


def test_where_weights_take_longest_computing_decides() -> None:
    slow_weights = [
        ReplicaClass(seconds=lambda n: 100.0 if n else 0.0, compute_seconds=line(per_sample))
        for per_sample in (1.0, 3.0)
    ]
    assert fill(slow_weights, 8) == [[6], [2]]
