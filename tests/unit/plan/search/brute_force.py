"""The best plan of a small space, by looking at all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from evener.plan.costing import Assignment, ReplicaAssignment, Span, predict
from evener.plan.costing.assignment import HOST_OWNER, holders_of, spread_owners
from evener.plan.costing.memory import shortages
from evener.plan.costing.stage_memory import entering_bytes
from evener.profile import CostProfile


def least_seconds(
    profile: CostProfile,
    batch_size: int,
    *,
    num_micro_batches: tuple[int, ...],
    all_owners: bool,
) -> float | None:
    """Return the least time of a step within memory; None if nothing fits.

    Args:
        profile: What things cost.
        batch_size: Of the global batch.
        num_micro_batches: That are tried.
        all_owners: Whether to try all owners, or those of the engine alone.
    """
    best = None
    for replicas in _all_replicas(profile, batch_size, num_micro_batches):
        for owners in _owners(profile, replicas, all_owners):
            for recompute in _recomputations(profile):
                assignment = Assignment(replicas=replicas, owners=owners, recompute=recompute)
                prediction = predict(assignment, profile)
                if not any(shortages(prediction.memory, profile.cluster)):
                    seconds = prediction.step_seconds
                    best = seconds if best is None else min(best, seconds)
    return best


def _all_replicas(
    profile: CostProfile, batch_size: int, num_micro_batches: tuple[int, ...]
) -> Iterator[tuple[ReplicaAssignment, ...]]:
    for groups in _groupings(len(profile.cluster.devices)):
        for shares in _compositions(batch_size, len(groups)):
            ways = [
                list(_replicas(group, samples, profile, num_micro_batches))
                for group, samples in zip(groups, shares, strict=True)
            ]
            yield from itertools.product(*ways)


def _replicas(
    group: tuple[int, ...], samples: int, profile: CostProfile, counts: tuple[int, ...]
) -> Iterator[ReplicaAssignment]:
    num_layers = len(profile.model.layers)
    for inner in itertools.combinations(range(1, num_layers), len(group) - 1):
        cuts = (0, *inner, num_layers)
        spans = tuple(Span(d, *cut) for d, cut in zip(group, itertools.pairwise(cuts), strict=True))
        for count in counts:
            if count <= samples:
                yield ReplicaAssignment(
                    samples=samples,
                    spans=spans,
                    num_micro_batches=count,
                    in_flight=min(len(group), count),
                )


def _groupings(num_devices: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield all sets of groups in which each device is once at most."""
    for size in range(1, num_devices + 1):
        for order in itertools.permutations(range(num_devices), size):
            for bars in itertools.product((False, True), repeat=size - 1):
                groups: list[tuple[int, ...]] = [(order[0],)]
                for device, begins in zip(order[1:], bars, strict=True):
                    if begins:
                        groups.append((device,))
                    else:
                        groups[-1] += (device,)
                if groups == sorted(groups):
                    yield tuple(groups)


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for bars in itertools.combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *bars, total)))


def _owners(
    profile: CostProfile, replicas: tuple[ReplicaAssignment, ...], all_owners: bool
) -> Iterator[tuple[int, ...]]:
    yield spread_owners(profile.model.layers, replicas, profile.cluster)
    if all_owners:
        holders = holders_of(replicas, len(profile.model.layers))
        yield from itertools.product(*((*devices, HOST_OWNER) for devices in holders))


def _recomputations(profile: CostProfile) -> Iterator[tuple[bool, ...]]:
    layers = profile.model.layers
    yield (False,) * len(layers)
    again = tuple(
        layer.activation_bytes > entering_bytes(profile.model, place)
        for place, layer in enumerate(layers)
    )
    if any(again):
        yield again
