"""Groups of devices that compute together."""

from __future__ import annotations

import itertools

import pytest

from evener.planner.groups import Grouping, groupings_of
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


def test_devices_with_other_memory_are_not_equal() -> None:
    assert len(found_of(cluster_of(["a", "a"], [100, 200]))) == len(
        found_of(cluster_of(["a", "b"]))
    )


def test_devices_of_other_machines_are_not_equal() -> None:
    machines = (Machine(), Machine())
    devices = tuple(
        ClusterDevice(name=f"gpu:{k}", type="a", machine=machine)
        for k, machine in enumerate((0, 0, 1))
    )
    network = Link(bytes_per_second=1e9)
    found = found_of(Cluster(devices=devices, machines=machines, network=network))
    pairs = [grouping for grouping in found if sorted(map(len, grouping)) == [2]]
    # Two of one machine, or one of each.
    assert len(pairs) == 2


def test_a_pipeline_has_no_more_stages_than_the_model_has_layers() -> None:
    assert max(len(group) for grouping in found_of(cluster_of("abc"), 2) for group in grouping) == 2


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


def test_groupings_of_eight_equal_devices() -> None:
    assert {(len(grouping), len(grouping[0])) for grouping in found_of(many(8))} == {
        (8, 1),
        (4, 2),
        (2, 4),
        (1, 8),
    }


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
