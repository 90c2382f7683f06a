"""Which devices compute together: the groups, each of which is one replica.

::

    cluster            groupings
    a  b  c            (a)(b)(c)   (a b)(c)   (b a)(c)   (a b c)   (a)(b)   (a)  ...

A group of several devices is a pipeline in their order. A device may be left out. Devices of one
type, memory and machine are the same, so groupings that differ by their names alone are one.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from evener.cost_model.assignment import crosses_machines
from evener.profile import Cluster

Group = tuple[int, ...]
"""Places of devices in the cluster, in the order of the stages."""

Grouping = tuple[Group, ...]

MOST_FOR_ALL = 4
"""The most devices for which every grouping is tried."""


def groupings_of(cluster: Cluster, num_layers: int) -> Iterator[Grouping]:
    """Yield the groupings that are worth a look, each once.

    Of up to `MOST_FOR_ALL` devices these are all there are. Of more, they are those in which every
    group has the same number of devices, of one type or of a mix that is the same in all.

    Args:
        cluster: The devices.
        num_layers: Of the model: no pipeline has more stages.
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
    """Return what makes a device the same as another: its type and its memory."""
    one = cluster.devices[device]
    return one.type, one.memory_bytes or 0


def is_over_machines(grouping: Grouping, cluster: Cluster) -> bool:
    """Whether each machine has owners of its own, in equal parts, which no plan names."""
    devices = [device for group in grouping for device in group]
    return len(grouping) > 1 and crosses_machines(devices, cluster)


def _signature(group: Group, cluster: Cluster) -> tuple[object, ...]:
    """Return what makes a group the same as another: kinds, and who shares a machine."""
    machines = [cluster.devices[device].machine for device in group]
    links = [cluster.machines[machine].link for machine in machines]
    first_seen = [machines.index(machine) for machine in machines]
    kinds = [kind_of(device, cluster) for device in group]
    return tuple(
        (*kind, link.bytes_per_second, place)
        for kind, link, place in zip(kinds, links, first_seen, strict=True)
    )


def _all_groupings(cluster: Cluster) -> Iterator[Grouping]:
    places = range(len(cluster.devices))
    for size in range(len(places), 0, -1):
        for chosen in itertools.combinations(places, size):
            for blocks in _partitions(chosen):
                orders = [list(itertools.permutations(block)) for block in blocks]
                yield from itertools.product(*orders)


def _partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield all ways to put items into blocks."""
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
            yield tuple((device,) for one in devices for device in one)
            count = sum(map(len, devices))
            for depth in _depths(count, num_layers):
                # Every kind in groups of its own.
                if all(len(one) % depth == 0 for one in devices):
                    yield tuple(group for one in devices for group in _chunks(one, depth))
                if len(chosen) > 1 and count % depth == 0:
                    yield from _mixed(devices, count // depth)


def _depths(count: int, num_layers: int) -> list[int]:
    """Return the numbers of stages that are tried: powers of two, and all devices at once."""
    depths = [2**k for k in range(1, 11) if 2**k <= min(count, num_layers)]
    return depths if count in depths or count > min(64, num_layers) else [*depths, count]


def _chunks(devices: Sequence[int], depth: int) -> Iterator[Group]:
    for begin in range(0, len(devices), depth):
        yield tuple(devices[begin : begin + depth])


def _mixed(devices: Sequence[Sequence[int]], num_groups: int) -> Iterator[Grouping]:
    """Yield groupings in which each group has the same number of each kind, in two orders."""
    if any(len(one) % num_groups for one in devices):
        return
    for order in (devices, devices[::-1]):
        yield tuple(
            tuple(
                device
                for one in order
                for device in one[
                    number * len(one) // num_groups : (number + 1) * len(one) // num_groups
                ]
            )
            for number in range(num_groups)
        )
