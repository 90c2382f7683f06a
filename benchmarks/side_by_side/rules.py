"""Rules by which others spread models over devices, as plans of evener's.

Each rule yields plans in the order in which it would try them: data parallel ones in ever more
micro-batches, until memory is enough.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from evener.clusters import ClusterDescription
from evener.plan.plan import split_batch
from evener.planner.assignment import Assignment, ReplicaAssignment, Span, spread_owners
from evener.profile import CostProfile, Curve

MOST_IN_ONE_PIPELINE = 16
MICRO_BATCHES_PER_STAGE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A model on a cluster."""

    described: ClusterDescription
    profile: CostProfile
    batch_size: int


def data_parallel(problem: Problem, shares: Sequence[float]) -> Iterator[Assignment]:
    """Yield the plan with these shares, in ever more micro-batches."""
    num_layers = len(problem.profile.model.layers)
    counts = split_batch(problem.batch_size, shares)
    whole = [
        ReplicaAssignment(samples=count, spans=(Span(place, 0, num_layers),))
        for place, count in enumerate(counts)
        if count
    ]
    for number in range(1 + int(math.log2(max(counts)))):
        yield owned(
            problem,
            [
                replace(replica, num_micro_batches=min(2**number, replica.samples))
                for replica in whole
            ],
        )


def even_split(problem: Problem) -> Iterator[Assignment]:
    """Yield plans in which every device has the same share."""
    return data_parallel(problem, [1.0] * len(problem.profile.cluster.devices))


def by_flops(problem: Problem) -> Iterator[Assignment]:
    """Yield plans with shares by the peak of the types of devices.

    Source: Jia et al., Whale: Efficient Giant Model Training over Heterogeneous GPUs, USENIX ATC
    2022. There a device that lacks memory also hands samples to others.
    """
    peaks: list[float] = []
    for device in problem.profile.cluster.devices:
        sheet = problem.described.types[device.type].datasheet
        assert sheet is not None
        peaks.append(sheet.peak_flops)
    return data_parallel(problem, peaks)


def by_curves(problem: Problem) -> Iterator[Assignment]:
    """Yield plans whose devices all compute for the same time.

    Source: Zhang et al., Poplar: Efficient Scaling of Distributed DNN Training on Heterogeneous
    GPU Clusters, AAAI 2025. Its splines through measured times are the curves themselves here.
    """
    profile = problem.profile
    curves = {
        name: Curve.total(curve for layer in times for curve in (layer.forward, layer.backward))
        for name, times in profile.times.items()
    }
    types = [device.type for device in profile.cluster.devices]

    def samples_within(seconds: float) -> dict[str, int]:
        return {name: most_within(curve, seconds) for name, curve in curves.items()}

    low, high = 0.0, max(curve(problem.batch_size) for curve in curves.values())
    for _ in range(60):
        middle = (low + high) / 2
        found = samples_within(middle)
        enough = sum(found[name] for name in types) >= problem.batch_size
        low, high = (low, middle) if enough else (middle, high)
    found = samples_within(high)
    return data_parallel(problem, [float(found[name]) for name in types])


def most_within(curve: Curve, seconds: float) -> int:
    """Return the most samples that take no longer."""
    low, high = 0, 1
    while curve(high) <= seconds:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if curve(middle) <= seconds else (low, middle)
    return low


def even_stages(problem: Problem) -> Iterator[Assignment]:
    """Yield the plan of pipelines whose stages have the same number of layers."""
    cluster, num_layers = problem.profile.cluster, len(problem.profile.model.layers)
    places = range(len(cluster.devices))
    groups = [list(places)]
    if len(groups[0]) > min(MOST_IN_ONE_PIPELINE, num_layers):
        by_machine = itertools.groupby(places, key=lambda place: cluster.devices[place].machine)
        groups = [list(group) for _, group in by_machine]
    counts = split_batch(problem.batch_size, [float(len(group)) for group in groups])
    replicas: list[ReplicaAssignment] = []
    for group, count in zip(groups, counts, strict=True):
        ends = [round(k * num_layers / len(group)) for k in range(len(group) + 1)]
        number = min(count, MICRO_BATCHES_PER_STAGE * len(group))
        replicas.append(
            ReplicaAssignment(
                samples=count,
                spans=tuple(Span(d, *ends[k : k + 2]) for k, d in enumerate(group)),
                num_micro_batches=number,
                in_flight=min(number, len(group)),
            )
        )
    yield owned(problem, replicas)


def owned(problem: Problem, replicas: Sequence[ReplicaAssignment]) -> Assignment:
    """Return the plan of replicas, owners spread over their devices."""
    layers = problem.profile.model.layers
    return Assignment(
        replicas=tuple(replicas),
        owners=spread_owners(layers, replicas, problem.profile.cluster),
        recompute=(False,) * len(layers),
    )


RULES: dict[str, Callable[[Problem], Iterator[Assignment]]] = {
    "even split": even_split,
    "by peak FLOP/s": by_flops,
    "by curves": by_curves,
    "even stages": even_stages,
}
