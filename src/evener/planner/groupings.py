"""Groupings of devices: each group computes one replica.

::

    cluster            groupings
    a  b  c            (a)(b)(c)   (a b)(c)   (b a)(c)   (a b c)   (a)(b)   (a)  ...

A group of several devices is a pipeline in that order. A device may be left out. Devices of the
same type, memory and machine are interchangeable, so equivalent groupings are yielded once.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from evener.cost_model.ownership import crosses_machines
from evener.profile import Cluster

Group = tuple[int, ...]
"""Device indices in the cluster, in the order of the stages."""

Grouping = tuple[Group, ...]

MOST_FOR_ALL = 4
"""Largest number of devices for which all groupings are tried."""


def groupings_of(cluster: Cluster, num_layers: int) -> Iterator[Grouping]:
    """Yield the groupings to try, each once.

    For up to `MOST_FOR_ALL` devices these are all groupings. For more, they are those in which
    every group has the same number of devices, all of one kind or in the same mix of kinds.

    Args:
        cluster: Devices.
        num_layers: Number of layers of the model; no pipeline has more stages.
    """
    seen: set[tuple[object, ...]] = set()
    few = len(cluster.devices) <= MOST_FOR_ALL
    for grouping in _all_groupings(cluster) if few else _regular_groupings(cluster, num_layers):
        if any(len(group) > num_layers for group in grouping):
            continue
        key = tuple(sorted(_signature(group, cluster) for group in grouping))
        if key not in seen:
            seen.add(key)
            yield grouping


def kind_of(device: int, cluster: Cluster) -> tuple[str, int]:
    """Return the kind of a device: its type and its memory."""
    found = cluster.devices[device]
    return found.type, found.memory_bytes or 0


def is_over_machines(grouping: Grouping, cluster: Cluster) -> bool:
    """Whether each machine has owners of its own; see `EACH_MACHINE`."""
    devices = [device for group in grouping for device in group]
    return len(grouping) > 1 and crosses_machines(devices, cluster)


def _signature(group: Group, cluster: Cluster) -> tuple[object, ...]:
    """Return a key that is equal for equivalent groups: kinds, links and shared machines."""
    machines = [cluster.devices[device].machine for device in group]
    links = [cluster.machines[machine].link for machine in machines]
    first_seen = [machines.index(machine) for machine in machines]
    kinds = [kind_of(device, cluster) for device in group]
    return tuple(
        (*kind, link.bytes_per_second, first)
        for kind, link, first in zip(kinds, links, first_seen, strict=True)
    )


def _all_groupings(cluster: Cluster) -> Iterator[Grouping]:
    devices = range(len(cluster.devices))
    for size in range(len(devices), 0, -1):
        for chosen in itertools.combinations(devices, size):
            for blocks in _partitions(chosen):
                orders = [list(itertools.permutations(block)) for block in blocks]
                yield from itertools.product(*orders)


def _partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield all partitions of items into blocks."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for blocks in _partitions(rest):
        yield [[first], *blocks]
        for number in range(len(blocks)):
            yield [
                [first, *block] if index == number else block for index, block in enumerate(blocks)
            ]


def _regular_groupings(cluster: Cluster, num_layers: int) -> Iterator[Grouping]:
    by_kind: dict[tuple[str, int], list[int]] = defaultdict(list)
    for device in range(len(cluster.devices)):
        by_kind[kind_of(device, cluster)].append(device)
    kinds = list(by_kind)
    for size in range(len(kinds), 0, -1):
        for chosen in itertools.combinations(kinds, size):
            devices = [by_kind[kind] for kind in chosen]
            yield tuple((device,) for of_kind in devices for device in of_kind)
            count = sum(map(len, devices))
            for depth in _depths(count, num_layers):
                # Groups of one kind.
                if all(len(of_kind) % depth == 0 for of_kind in devices):
                    yield tuple(group for of_kind in devices for group in _chunks(of_kind, depth))
                if len(chosen) > 1 and count % depth == 0:
                    yield from _mixed(devices, count // depth)


def _depths(count: int, num_layers: int) -> list[int]:
    """Return the numbers of stages to try: powers of two, and all devices."""
    depths = [2**k for k in range(1, 11) if 2**k <= min(count, num_layers)]
    return depths if count in depths or count > min(64, num_layers) else [*depths, count]


def _chunks(devices: Sequence[int], depth: int) -> Iterator[Group]:
    for begin in range(0, len(devices), depth):
        yield tuple(devices[begin : begin + depth])


def _mixed(devices: Sequence[Sequence[int]], num_groups: int) -> Iterator[Grouping]:
    """Yield groupings with the same number of each kind in every group, in two orders."""
    if any(len(of_kind) % num_groups for of_kind in devices):
        return
    for order in (devices, devices[::-1]):
        yield tuple(
            tuple(
                device
                for of_kind in order
                for device in of_kind[
                    number * len(of_kind) // num_groups : (number + 1) * len(of_kind) // num_groups
                ]
            )
            for number in range(num_groups)
        )
