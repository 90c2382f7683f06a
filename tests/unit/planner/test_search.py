"""The search: samples of replicas, owners where memory is short, work by size."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.planner import search_plan
from evener.planner.assignment import HOST_OWNER, ReplicaAssignment, Span
from evener.planner.groups import GroupCosts
from evener.planner.search import ReplicaClass, Solver, fill, owners_that_fit, owning_bytes
from evener.profile import CostProfile, LayerCosts, Link, ModelCosts
from unit.planner.profiles import MIB, cluster_of, profile_of


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


def sized_model(*sizes: int) -> ModelCosts:
    return ModelCosts(
        name="sized",
        layers=tuple(
            LayerCosts(name=f"layer_{k}", weight_bytes=size, optimizer_bytes=2 * size)
            for k, size in enumerate(sizes)
        ),
    )


def replicas(num_devices: int, num_layers: int) -> list[ReplicaAssignment]:
    return [
        ReplicaAssignment(samples=1, spans=(Span(k, 0, num_layers),)) for k in range(num_devices)
    ]


def test_the_largest_goes_to_the_device_with_most_room() -> None:
    model = sized_model(10, 30, 20)
    room = {0: 100.0, 1: 90.0}
    found = owners_that_fit(model, replicas(2, 3), room, allow_host=False)
    # With two holders an owner needs 3 times the weights: 90 on gpu:0, 60 on gpu:1, then 30.
    assert found == (1, 0, 1)


def test_gradients_that_leave_one_by_one_wait_on_their_owner_once() -> None:
    model = sized_model(10)
    # Variables of 30 bytes, no fetched weights, and of four devices the gradients of the others.
    assert [owning_bytes(model.layers[0], n, sums_wait=True) for n in (1, 2, 4)] == [20, 30, 50]
    assert [owning_bytes(model.layers[0], n, sums_wait=False) for n in (1, 2, 4)] == [20, 30, 30]
    room = dict.fromkeys(range(4), 30.0)
    holders = replicas(4, 1)
    assert owners_that_fit(model, holders, room, allow_host=False, sums_wait=False) == (0,)
    assert owners_that_fit(model, holders, room, allow_host=False, sums_wait=True) is None


def test_with_one_holder_nothing_is_fetched() -> None:
    # It needs 3 x 10 bytes for the variables, and 10 less as it fetches no weights and no
    # gradient arrives.
    model = sized_model(10)
    assert owners_that_fit(model, replicas(1, 1), {0: 20.0}, allow_host=False) == (0,)
    assert owners_that_fit(model, replicas(1, 1), {0: 19.0}, allow_host=False) is None


def test_the_host_takes_what_fits_nowhere() -> None:
    model = sized_model(10, 30)
    room = {0: 40.0, 1: 30.0}
    assert owners_that_fit(model, replicas(2, 2), room, allow_host=True) == (0, HOST_OWNER)
    assert owners_that_fit(model, replicas(2, 2), room, allow_host=False) is None


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=6),
    st.lists(st.floats(0, 200), min_size=1, max_size=3),
)
def test_no_device_gets_more_than_its_room(sizes: list[int], room: list[float]) -> None:
    model, left = sized_model(*sizes), dict(enumerate(room))
    found = owners_that_fit(model, replicas(len(room), len(sizes)), left, allow_host=True)
    assert found is not None
    used = dict.fromkeys(left, 0.0)
    for owner, layer in zip(found, model.layers, strict=True):
        if owner != HOST_OWNER:
            used[owner] += layer.owned_bytes + layer.weight_bytes * (len(room) - 2)
    assert all(used[device] <= left[device] + 1e-6 for device in left)


SECONDS = [1e-3] * 20
ROOMY, TIGHT = None, 40 * MIB


def mixed_profile(num_devices: int, memory: int | None) -> CostProfile:
    """Return a profile of as many fast devices as slow ones."""
    types = ["fast", "slow"] * (num_devices // 2)
    cluster = cluster_of(sorted(types), [memory] * num_devices, Link(bytes_per_second=1e10))
    return profile_of(SECONDS, {"fast": 1.0, "slow": 2.5}, cluster, overhead=1e-4)


def work_of(profile: CostProfile) -> Counter[str]:
    """Return how often groupings are solved, models cut, and times of replicas looked up."""
    counted: Counter[str] = Counter()
    batch_size = 8 * len(profile.cluster.devices)
    with pytest.MonkeyPatch.context() as patch:
        for kind, name in ((Solver, "solve"), (GroupCosts, "cut"), (GroupCosts, "_makespan")):
            patch.setattr(kind, name, _counting(counted, name, getattr(kind, name)))
        assert search_plan(profile, batch_size).best is not None
    return counted


def _counting(counted: Counter[str], name: str, method: object) -> object:
    assert callable(method)

    def call(*arguments: object, **named: object) -> object:
        counted[name] += 1
        return method(*arguments, **named)

    return call


@pytest.mark.parametrize("memory", [ROOMY, TIGHT])
def test_work_grows_far_slower_than_the_cluster(memory: int | None) -> None:
    small, large = (work_of(mixed_profile(num_devices, memory)) for num_devices in (16, 128))
    # Eight times as many devices.
    assert large["solve"] <= 2 * small["solve"]
    assert large["cut"] <= 3 * small["cut"]
    assert large["_makespan"] <= 4 * small["_makespan"]
    assert memory is TIGHT or large["solve"] <= 40


def test_equal_devices_are_looked_at_once() -> None:
    mixed = mixed_profile(16, ROOMY)
    cluster = cluster_of(["fast"] * 16, None, Link(bytes_per_second=1e10))
    equal = dataclasses.replace(mixed, cluster=cluster)
    assert work_of(equal)["solve"] < work_of(mixed)["solve"]
