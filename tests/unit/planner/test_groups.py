"""Groups of devices that compute together, and cuts of layers into their stages."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from evener.planner import groups
from evener.planner.groups import Grouping, best_cuts, groupings_of
from evener.profile import Cluster, ClusterDevice, Link, Machine
from unit.planner.profiles import cluster_of

OF_THREE = {
    # All, each alone.
    ((0,), (1,), (2,)),
    # All, two together, in both orders.
    ((0, 1), (2,)),
    ((1, 0), (2,)),
    ((0, 2), (1,)),
    ((1,), (2, 0)),
    ((0,), (1, 2)),
    ((0,), (2, 1)),
    # All in one pipeline.
    *(((a, b, c),) for a, b, c in itertools.permutations(range(3))),
    # Two of them.
    ((0,), (1,)),
    ((0,), (2,)),
    ((1,), (2,)),
    *(((a, b),) for a, b in itertools.permutations(range(3), 2)),
    # One of them.
    ((0,),),
    ((1,),),
    ((2,),),
}


def found_of(cluster: Cluster, num_layers: int = 100) -> list[Grouping]:
    return [tuple(sorted(grouping)) for grouping in groupings_of(cluster, num_layers)]


def test_all_groupings_of_three_different_devices() -> None:
    found = found_of(cluster_of(["a", "b", "c"]))
    assert set(found) == OF_THREE
    assert len(found) == len(OF_THREE) == 25


def test_of_equal_devices_each_layout_is_there_once() -> None:
    found = found_of(cluster_of(["a", "a", "a"]))
    sizes = sorted(sorted(map(len, grouping)) for grouping in found)
    assert sizes == [[1], [1, 1], [1, 1, 1], [1, 2], [2], [3]]
    sizes_of_many = {(len(grouping), len(grouping[0])) for grouping in found_of(many(8))}
    assert sizes_of_many == {(8, 1), (4, 2), (2, 4), (1, 8)}
    # A pipeline has no more stages than the model has layers.
    assert max(len(group) for grouping in found_of(cluster_of("abc"), 2) for group in grouping) == 2


def test_devices_with_other_memory_or_of_other_machines_are_not_equal() -> None:
    unequal = cluster_of(["a", "a"], [100, 200])
    assert len(found_of(unequal)) == len(found_of(cluster_of(["a", "b"])))
    devices = tuple(
        ClusterDevice(name=f"gpu:{k}", type="a", machine=machine)
        for k, machine in enumerate((0, 0, 1))
    )
    network = Link(bytes_per_second=1e9)
    cluster = Cluster(devices=devices, machines=(Machine(), Machine()), network=network)
    pairs = [grouping for grouping in found_of(cluster) if sorted(map(len, grouping)) == [2]]
    # Two of one machine, or one of each.
    assert len(pairs) == 2


def many(*counts: int) -> Cluster:
    return cluster_of(
        [name for name, count in zip("abc", counts, strict=False) for _ in range(count)]
    )


@pytest.mark.parametrize("counts", [(8,), (4, 4), (8, 4), (5, 3), (4, 4, 4)])
def test_groupings_of_many_devices_are_valid(counts: tuple[int, ...]) -> None:
    cluster = many(*counts)
    found = found_of(cluster, 16)
    assert len(set(found)) == len(found)
    for grouping in found:
        used = [device for group in grouping for device in group]
        assert len(set(used)) == len(used)
    # Every device alone, and each kind alone.
    everyone = tuple((device,) for device in range(sum(counts)))
    assert everyone in found
    assert tuple((device,) for device in range(counts[0])) in found


def test_mixed_groups_have_as_many_of_each_kind_in_both_orders() -> None:
    found = found_of(many(4, 4))
    assert ((0, 4), (1, 5), (2, 6), (3, 7)) in found
    assert ((4, 0), (5, 1), (6, 2), (7, 3)) in found
    assert ((0, 1, 4, 5), (2, 3, 6, 7)) in found


def test_their_number_grows_with_the_logarithm_of_the_devices() -> None:
    sizes = [len(found_of(many(2**k, 2**k), 64)) for k in range(3, 9)]
    # One step doubles the devices, and adds one depth to a few layouts.
    assert all(after - before <= 10 for before, after in itertools.pairwise(sizes))
    assert sizes[-1] < 60


Fits = Callable[[int, int, int], bool]


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


problems = st.tuples(
    st.lists(st.floats(0.5, 4), min_size=1, max_size=4),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    st.integers(1, 8),
    st.integers(1, 8),
)


def cuts_that_fit(num_stages: int, num_layers: int, fits: Fits) -> list[tuple[int, ...]]:
    all_cuts = (
        (0, *inner, num_layers)
        for inner in itertools.combinations(range(1, num_layers), num_stages - 1)
    )
    return [
        cuts
        for cuts in all_cuts
        if all(fits(k, *stage) for k, stage in enumerate(itertools.pairwise(cuts)))
    ]


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
    possible = cuts_that_fit(len(speeds), len(layers), fits)
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

    def longest(cuts: tuple[int, ...]) -> float:
        return max(seconds(k, *stage) for k, stage in enumerate(itertools.pairwise(cuts)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "MOST_FOR_BEST_CUTS", 0)
        found = best_cuts(len(speeds), len(layers), 1, seconds, fits)
    possible = cuts_that_fit(len(speeds), len(layers), fits)
    if not possible:
        assert found is None
        return
    assert found in possible
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


@pytest.mark.parametrize(("num_micro_batches", "cuts"), [(1, (0, 3, 4)), (8, (0, 2, 4))])
def test_more_micro_batches_prefer_even_stages(
    num_micro_batches: int, cuts: tuple[int, ...]
) -> None:
    speeds, layers = [1.0, 1.25], [3.0, 1.0, 4.0, 1.0]

    def seconds(stage: int, first: int, end: int) -> float:
        return speeds[stage] * sum(layers[first:end])

    assert best_cuts(2, 4, num_micro_batches, seconds, everything_fits) == cuts
