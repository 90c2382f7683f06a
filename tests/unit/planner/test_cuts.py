"""Cuts of layers into stages, compared with all cuts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from evener.planner import groups
from evener.planner.groups import best_cuts


def everything_fits(stage: int, first: int, end: int) -> bool:
    return True


def pipeline_seconds(
    found: tuple[int, ...], speeds: list[float], layers: list[float], num_micro_batches: int
) -> float:
    stages = [
        sum(layers[first:end]) * speed
        for speed, (first, end) in zip(speeds, itertools.pairwise(found), strict=True)
    ]
    return sum(stages) + (num_micro_batches - 1) * max(stages)


def all_cuts(num_stages: int, num_layers: int) -> list[tuple[int, ...]]:
    return [
        (0, *inner, num_layers)
        for inner in itertools.combinations(range(1, num_layers), num_stages - 1)
    ]


problems = st.tuples(
    st.lists(st.floats(0.5, 4), min_size=1, max_size=4),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    st.integers(1, 8),
    st.integers(1, 8),
)


@given(problems)
def test_no_other_cuts_that_fit_are_faster(
    problem: tuple[list[float], list[float], int, int],
) -> None:
    speeds, layers, num_micro_batches, most_layers = problem

    def seconds(stage: int, first: int, end: int) -> float:
        return sum(layers[first:end]) * speeds[stage]

    def fits(stage: int, first: int, end: int) -> bool:
        # The first stage takes fewer, as it keeps more.
        return end - first <= most_layers - (stage == 0)

    found = best_cuts(len(speeds), len(layers), num_micro_batches, seconds, fits)
    possible = [
        cuts
        for cuts in all_cuts(len(speeds), len(layers))
        if all(fits(k, *stage) for k, stage in enumerate(itertools.pairwise(cuts)))
    ]
    if not possible:
        assert found is None
        return
    assert found in possible
    least = min(pipeline_seconds(cuts, speeds, layers, num_micro_batches) for cuts in possible)
    took = pipeline_seconds(found, speeds, layers, num_micro_batches)
    assert took <= least * (1 + 1e-9)


@given(problems)
# The heavy layer goes to the last stage only if the first takes less than it could.
@example(([1.0, 2.0, 1.0], [1.0, 1.0, 2.0, 1.0], 1, 2))
def test_of_long_models_the_longest_stage_is_the_shortest_possible(
    problem: tuple[list[float], list[float], int, int],
) -> None:
    speeds, layers, _, most_layers = problem
    assume(len(speeds) <= len(layers))

    def seconds(stage: int, first: int, end: int) -> float:
        return sum(layers[first:end]) * speeds[stage]

    def fits(stage: int, first: int, end: int) -> bool:
        return end - first <= most_layers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "MOST_FOR_BEST_CUTS", 0)
        found = best_cuts(len(speeds), len(layers), 1, seconds, fits)
    possible = [
        cuts
        for cuts in all_cuts(len(speeds), len(layers))
        if all(fits(k, *stage) for k, stage in enumerate(itertools.pairwise(cuts)))
    ]
    if not possible:
        assert found is None
        return
    assert found in possible

    def longest(cuts: tuple[int, ...]) -> float:
        return max(seconds(k, *stage) for k, stage in enumerate(itertools.pairwise(cuts)))

    assert longest(found) <= min(map(longest, possible)) * 1.001


def test_long_models_are_cut_without_looking_at_all_cuts() -> None:
    num_calls = 0

    def seconds(stage: int, first: int, end: int) -> float:
        nonlocal num_calls
        num_calls += 1
        return float(end - first)

    assert best_cuts(100, 1000, 8, seconds, everything_fits) == tuple(range(0, 1001, 10))
    # About 100 stages x 10 layers looked at x 15 halvings; all cuts would be 50 million.
    assert num_calls < 50_000


def test_more_micro_batches_prefer_even_stages() -> None:
    speeds, layers = [1.0, 1.25], [3.0, 1.0, 4.0, 1.0]

    def seconds(stage: int, first: int, end: int) -> float:
        return speeds[stage] * sum(layers[first:end])

    assert best_cuts(2, 4, 1, seconds, everything_fits) == (0, 3, 4)
    assert best_cuts(2, 4, 8, seconds, everything_fits) == (0, 2, 4)
