"""Clusters and links."""

from __future__ import annotations

import math

import pytest

from evener.errors import ProfileError
from evener.profile import Cluster, ClusterDevice, Link, Machine


def device(name: str, machine: int = 0) -> ClusterDevice:
    return ClusterDevice(name=name, type="one", machine=machine)


def test_a_transfer_takes_latency_and_bytes_by_bandwidth() -> None:
    link = Link(bytes_per_second=10.0, latency_seconds=0.5)
    assert link.seconds(20.0) == 2.5
    assert link.seconds(0.0) == 0.0
    assert Link().seconds(1e12) == 0.0


@pytest.mark.parametrize(
    ("bandwidth", "latency"),
    [(0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (1.0, -1.0), (1.0, math.inf), (1.0, math.nan)],
)
def test_links_that_cannot_be(bandwidth: float, latency: float) -> None:
    with pytest.raises(ProfileError, match="PROF-004"):
        Link(bytes_per_second=bandwidth, latency_seconds=latency)


def test_devices_of_one_machine_use_its_link_and_others_the_network() -> None:
    links = [Link(bytes_per_second=float(k)) for k in (1, 2, 3)]
    cluster = Cluster(
        devices=(device("a"), device("b"), device("c", 1), device("d", 1)),
        machines=(Machine(link=links[0]), Machine(link=links[1])),
        network=links[2],
    )
    assert cluster.link(0, 1) == links[0]
    assert cluster.link(3, 2) == links[1]
    assert cluster.link(1, 2) == cluster.link(2, 1) == links[2]


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ((), "It has no devices."),
        ((device("gpu:0"), device("gpu:0")), "The device 'gpu:0' is there twice."),
        ((device("gpu:0", 1),), "gpu:0 is in machine 1, which is not there."),
        ((device("gpu:0", -1),), "gpu:0 is in machine -1, which is not there."),
    ],
)
def test_clusters_that_contradict_themselves(devices: tuple[ClusterDevice, ...], why: str) -> None:
    with pytest.raises(ProfileError, match="PROF-005") as caught:
        Cluster(devices=devices, name="office")
    assert "'office'" in caught.value.what
    assert caught.value.why == why
