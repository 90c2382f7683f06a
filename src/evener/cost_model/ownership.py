"""Devices that compute each layer, and the owners that follow from them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from evener.cost_model.assignment import EACH_MACHINE, ReplicaAssignment
from evener.profile import Cluster, LayerCosts


def spread_owners(
    layers: Sequence[LayerCosts],
    replicas: Sequence[ReplicaAssignment],
    cluster: Cluster,
    fixed: Sequence[int | None] | None = None,
) -> tuple[int, ...]:
    """Return the owner of each layer: the emptiest of the devices that compute it.

    Args:
        layers: Layers of the model.
        replicas: Replicas that compute the layers.
        cluster: Devices; their fullness is relative to their memory.
        fixed: Owner of each layer if that is decided already, else None.
    """
    given = fixed or [None] * len(layers)
    capacities = [device.memory_bytes for device in cluster.devices]
    smallest = min((size for size in capacities if size), default=1)
    holders = holders_of(replicas, len(layers))
    cross = {devices: crosses_machines(devices, cluster) for devices in set(holders)}
    owned: dict[int, float] = {}
    owners: dict[int, int] = {}
    heaps: dict[tuple[int, ...], list[tuple[float, int]]] = {}
    order = sorted(range(len(layers)), key=lambda index: -layers[index].owned_bytes)
    for index in sorted(order, key=lambda index: given[index] is None):
        chosen, devices = given[index], holders[index]
        if chosen is None and cross[devices]:
            chosen = EACH_MACHINE
        if chosen is None:
            if devices not in heaps:
                heaps[devices] = [(owned.get(device, 0.0), device) for device in devices]
                heapq.heapify(heaps[devices])
            heap = heaps[devices]
            fullness, chosen = heap[0]
            while fullness < owned.get(chosen, 0.0):
                heapq.heapreplace(heap, (owned[chosen], chosen))
                fullness, chosen = heap[0]
        capacity = smallest if chosen < 0 else capacities[chosen] or smallest
        owned[chosen] = owned.get(chosen, 0.0) + layers[index].owned_bytes / capacity
        owners[index] = chosen
    return tuple(owners[index] for index in range(len(layers)))


def crosses_machines(devices: Sequence[int], cluster: Cluster) -> bool:
    """Whether devices are in more than one machine."""
    return len({cluster.devices[device].machine for device in devices}) > 1


def by_machine(devices: Iterable[int], cluster: Cluster) -> dict[int, list[int]]:
    """Return devices by their machine."""
    found: dict[int, list[int]] = {}
    for device in devices:
        found.setdefault(cluster.devices[device].machine, []).append(device)
    return found


def holders_of(replicas: Sequence[ReplicaAssignment], num_layers: int) -> list[tuple[int, ...]]:
    """Return for each layer the distinct devices that compute it."""
    # In large clusters most replicas have the same stages.
    by_ends: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, span in enumerate(span for replica in replicas for span in replica.spans):
        by_ends.setdefault((span.first, span.end), []).append((number, span.device))
    around: list[list[tuple[int, int]]] = [[] for _ in range(num_layers)]
    for first, end in by_ends:
        for layer in range(first, end):
            around[layer].append((first, end))
    known: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
    for ends in set(map(tuple, around)):
        numbered = sorted(pair for of_ends in ends for pair in by_ends[of_ends])
        known[ends] = tuple(dict.fromkeys(device for _, device in numbered))
    return [known[tuple(ends)] for ends in around]
