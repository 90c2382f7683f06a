"""The clusters that are described with evener."""

from __future__ import annotations

from collections import Counter

import pytest

from evener.clusters import cluster_named, cluster_names
from evener.errors import ProfileError

DEVICES = {
    "a100-8": ({"a100": 8}, 1),
    "h100-128x8": ({"h100": 1024}, 128),
    "rtx3090-3-1": ({"rtx3090": 4}, 2),
    "rtx3090-rtx3060": ({"rtx3090": 1, "rtx3060": 1}, 1),
    "v100-8-p100-8": ({"v100": 8, "p100": 8}, 2),
}


def test_all_of_them_are_here() -> None:
    assert cluster_names() == tuple(sorted(DEVICES))


@pytest.mark.parametrize("name", DEVICES)
def test_a_cluster_has_its_devices_and_the_sources_of_its_figures(name: str) -> None:
    described = cluster_named(name)
    cluster = described.cluster
    counts, num_machines = DEVICES[name]
    assert Counter(device.type for device in cluster.devices) == counts
    assert len(cluster.machines) == num_machines
    assert cluster.name == name
    assert described.about
    for device in described.types.values():
        assert device.datasheet is not None
        assert len(device.source) > 20
        assert len(device.datasheet.efficiency_source) > 20
        assert 2**33 < device.memory_bytes < 2**37


def test_machines_of_three_and_one_device() -> None:
    machines = [device.machine for device in cluster_named("rtx3090-3-1").cluster.devices]
    assert machines == [0, 0, 0, 1]


def test_an_unknown_name_is_answered_with_a_close_one() -> None:
    with pytest.raises(ProfileError, match="Did you mean 'a100-8'") as caught:
        cluster_named("a100_8")
    assert caught.value.code == "PROF-038"


@pytest.mark.parametrize("name", ["../shipped", "", "a100-8.yaml"])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(ProfileError) as caught:
        cluster_named(name)
    assert caught.value.code == "PROF-038"


def test_nothing_of_it_imports_tensorflow(run_python) -> None:
    done = run_python(
        "import sys, evener.clusters\n"
        "evener.clusters.cluster_named('a100-8')\n"
        "print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))\n"
    )
    assert done.stdout.strip() == "[]"
