"""Other schedules of a pipeline, and interleaved stages.

::

    zero bubble     a | F0 F1 F2 .  .  B0 W0 ...     the devices and cuts of 1F1B
    interleaved     a b a b                          v times as many stages, each of 1/v of the
    layers
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence

from evener.cost_model.assignment import ReplicaAssignment, Span
from evener.plan.parts import ScheduleName
from evener.planner.cuts import Seconds, best_cuts
from evener.profile import CostProfile

_MOST_CUTS = 500
_MOST_TRIED = 8


def with_schedule(
    replicas: Sequence[ReplicaAssignment], schedule: ScheduleName, counts: Sequence[int]
) -> Iterator[tuple[ReplicaAssignment, ...]]:
    """Yield pipelines with a schedule, in their number of micro-batches and in others.

    Args:
        replicas: Pipelines, each with several stages.
        schedule: Schedule to use.
        counts: Other numbers of micro-batches to try.
    """
    others = tuple(dataclasses.replace(replica, schedule=schedule) for replica in replicas)
    yield others
    for count in counts:
        yield tuple(in_micro_batches(replica, count) for replica in others)


def in_micro_batches(replica: ReplicaAssignment, count: int) -> ReplicaAssignment:
    """Return a replica with ``count`` micro-batches, but at most one per sample."""
    count = min(count, replica.samples)
    return dataclasses.replace(
        replica, num_micro_batches=count, in_flight=min(len(replica.spans), count)
    )


def interleaved(
    replica: ReplicaAssignment,
    num_rounds: int,
    num_micro_batches: int,
    profile: CostProfile,
    most_seconds: float,
) -> Iterator[tuple[float, ReplicaAssignment]]:
    """Yield interleaved pipelines with an estimate of their seconds.

    The estimate is the time of the busiest device plus the time of a micro-batch in one round on
    the other devices. For short models all cuts are estimated and the best are yielded.

    Args:
        replica: Replica with the devices in their order, and the samples.
        num_rounds: Stages per device; the model has at least as many layers as stages.
        num_micro_batches: Micro-batches, a multiple of the number of devices.
        profile: Costs of the layers.
        most_seconds: Upper limit of the busiest device's seconds.
    """
    devices = list(dict.fromkeys(replica.devices))
    stages = devices * num_rounds
    sums = [_sums(device, replica.samples / num_micro_batches, profile) for device in devices]

    def seconds(stage: int, first: int, end: int) -> float:
        of_device = sums[stage % len(devices)]
        return of_device[end] - of_device[first]

    timed: list[tuple[float, tuple[int, ...]]] = []
    for cuts in _cuts(len(stages), len(profile.model.layers), num_micro_batches, seconds):
        took = [seconds(k, *ends) for k, ends in enumerate(itertools.pairwise(cuts))]
        busy = max(sum(took[k :: len(devices)]) for k in range(len(devices)))
        if num_micro_batches * busy < most_seconds:
            timed.append((num_micro_batches * busy + (sum(took) - busy) / num_rounds, cuts))
    for estimate, cuts in heapq.nsmallest(_MOST_TRIED, timed):
        spans = (
            Span(device, first, end)
            for device, (first, end) in zip(stages, itertools.pairwise(cuts), strict=True)
        )
        found = dataclasses.replace(
            replica,
            spans=tuple(spans),
            num_micro_batches=num_micro_batches,
            in_flight=min(2 * len(devices), num_micro_batches),
            schedule="1f1b",
        )
        yield estimate + _travel_seconds(found, profile), found


def _fits_always(stage: int, first: int, end: int) -> bool:
    return True


def _travel_seconds(replica: ReplicaAssignment, profile: CostProfile) -> float:
    """Return the transfer seconds of a micro-batch through all stages and back."""
    cluster, layers = profile.cluster, profile.model.layers
    return 2 * sum(
        cluster.link(before.device, after.device).seconds(
            layers[before.end - 1].boundary_bytes * replica.micro_batch
        )
        for before, after in itertools.pairwise(replica.spans)
    )


def _cuts(
    num_stages: int, num_layers: int, num_micro_batches: int, seconds: Seconds
) -> Iterator[tuple[int, ...]]:
    """Yield all cuts of a short model, or the one with the least longest stage of a long one."""
    if math.comb(num_layers - 1, num_stages - 1) > _MOST_CUTS:
        cuts = best_cuts(num_stages, num_layers, num_micro_batches, seconds, _fits_always)
        assert cuts is not None, "cuts always exist without memory limits"
        yield cuts
        return
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
        yield (0, *inner, num_layers)


def interleaved_counts(num_devices: int, counts: Sequence[int], samples: int) -> list[int]:
    """Return the numbers of micro-batches that an interleaved schedule can have.

    >>> interleaved_counts(3, (1, 2, 4, 8), 64)
    [3, 6]
    >>> interleaved_counts(2, (1, 2, 4, 8), 4)
    [2, 4]
    """
    most = min(max(counts), samples)
    return [num_devices * count for count in counts if num_devices * count <= most]


def _sums(device: int, size: float, profile: CostProfile) -> list[float]:
    """Return the seconds of the first k layers, forward and backward, for each k."""
    times = profile.times[profile.cluster.devices[device].type]
    return list(
        itertools.accumulate(
            (layer.forward(size) + layer.backward(size) for layer in times), initial=0.0
        )
    )
