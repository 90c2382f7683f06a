"""The best plan of a small space, by looking at all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from evener.planner.assignment import (
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    holders_of,
    spread_owners,
)
from evener.planner.memory import entering_bytes, shortages
from evener.planner.prediction import predict
from evener.profile import CostProfile


def best_plan(
    profile: CostProfile,
    batch_size: int,
    *,
    num_micro_batches: tuple[int, ...],
    all_owners: bool,
) -> tuple[float, Assignment] | None:
    """Return the least time of a step within memory, and a plan that takes it; None if none fits.

    Args:
        profile: Costs of the layers, and the cluster.
        batch_size: Samples of the global batch.
        num_micro_batches: Numbers of micro-batches to try.
        all_owners: Whether to try all owners, or those of the engine alone.
    """
    best: tuple[float, Assignment] | None = None
    for replicas in _all_replicas(profile, batch_size, num_micro_batches):
        for owners in _owners(profile, replicas, all_owners):
            for recompute in _recomputations(profile, replicas):
                assignment = Assignment(replicas=replicas, owners=owners, recompute=recompute)
                prediction = predict(assignment, profile)
                seconds = prediction.step_seconds
                fits = not any(shortages(prediction.memory, profile.cluster))
                if fits and (best is None or seconds < best[0]):
                    best = seconds, assignment
                # What is computed again only takes time.
                if not any(recompute) and (fits or (best and seconds >= best[0])):
                    break
    return best


def features_of(assignment: Assignment) -> tuple[str, ...]:
    """Return what a plan has besides devices, cuts, shares and micro-batches, in words."""
    found = {
        "layers recomputed": any(assignment.recompute),
        "variables on the host": HOST_OWNER in assignment.owners,
    }
    return tuple(name for name, has in found.items() if has)


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
    for spans in _spans(group, profile):
        for count in counts:
            if count <= samples:
                yield ReplicaAssignment(
                    samples=samples,
                    spans=spans,
                    num_micro_batches=count,
                    in_flight=min(len(group), count),
                )


def _spans(stages: tuple[int, ...], profile: CostProfile) -> Iterator[tuple[Span, ...]]:
    """Yield all cuts of a model into stages on some devices."""
    num_layers = len(profile.model.layers)
    for inner in itertools.combinations(range(1, num_layers), len(stages) - 1):
        ends = itertools.pairwise((0, *inner, num_layers))
        yield tuple(Span(device, *two) for device, two in zip(stages, ends, strict=True))


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


def _recomputations(
    profile: CostProfile, replicas: tuple[ReplicaAssignment, ...]
) -> Iterator[tuple[bool, ...]]:
    """Yield that no layer is computed again, and then every other choice of layers."""
    layers = profile.model.layers
    yield (False,) * len(layers)
    if all(replica.schedule == "1f1b" for replica in replicas):
        may_be = (
            (False, True) if layer.activation_bytes > entering_bytes(profile.model, k) else (False,)
            for k, layer in enumerate(layers)
        )
        yield from (again for again in itertools.product(*may_be) if any(again))
