"""The time of a step and the memory of every device, predicted from a profile.

::

    replica    | weights arrive          | gradients leave              | update |
               | forward passes          | backward passes              |        |

Weights arrive while the forward passes of the first micro-batch run, gradients leave while the
backward passes of the last one run; of two that overlap, the longer one counts. A step takes as
long as its slowest replica.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    assignment_of,
    by_machine,
    holders_of,
)
from evener.cost_model.barriers import seconds_with_barriers, step_has_barriers
from evener.cost_model.exchange import ExchangeSeconds, exchange_seconds
from evener.cost_model.memory import MemoryPrediction, predict_memory
from evener.cost_model.passes import numbered_devices, pipeline_timeline, span_seconds
from evener.plan.plan import Plan
from evener.profile import CostProfile
from evener.schedule.timing import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPrediction:
    """What one replica does in a step, in seconds.

    Args:
        compute_seconds: Of its busiest device.
        bubble_seconds: For which its busiest device waits for others.
        communication_seconds: Of weights and gradients, as far as no computation hides it.
        update_seconds: The longest update of the weights that its devices own.
        utilization: For each stage the fraction of the step in which its device computes for it.
    """

    compute_seconds: float
    bubble_seconds: float
    communication_seconds: float
    update_seconds: float
    utilization: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """All of it."""
        return (
            self.compute_seconds
            + self.bubble_seconds
            + self.communication_seconds
            + self.update_seconds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a step costs.

    Args:
        step_seconds: Of the whole step.
        replicas: Of each replica with samples.
        memory: What each device needs, by its place in the cluster, the host at `HOST_OWNER`.
        timelines: Of each replica the tasks of its stages; None for a replica of one stage.
    """

    step_seconds: float
    replicas: tuple[ReplicaPrediction, ...]
    memory: Mapping[int, MemoryPrediction]
    timelines: tuple[Timeline | None, ...]

    @property
    def slowest(self) -> ReplicaPrediction:
        """The replica that all others wait for."""
        return max(self.replicas, key=lambda replica: replica.seconds)


def predict_plan(plan: Plan, profile: CostProfile, batch_size: int) -> Prediction:
    """Return what a plan costs.

    Args:
        plan: For devices of the profile's cluster and layers of its model.
        profile: What they cost.
        batch_size: Samples of the global batch.

    Raises:
        PlanError: If the plan names devices or layers that the profile does not have.
    """
    return predict(assignment_of(plan, profile.model, profile.cluster, batch_size), profile)


def predict(assignment: Assignment, profile: CostProfile) -> Prediction:
    """Return what an assignment costs."""
    travel = exchange_seconds(assignment, profile.model, profile.cluster)
    update = update_seconds(assignment, profile)
    # Of a thousand replicas, most are alike.
    known: dict[object, tuple[ReplicaPrediction, Timeline | None]] = {}
    found: list[tuple[ReplicaPrediction, Timeline | None]] = []
    for replica in assignment.replicas:
        weights = _Weights.of(replica, travel, update)
        key = (_alike(replica, profile), weights)
        if key not in known:
            known[key] = _replica(replica, assignment, profile, weights)
        found.append(known[key])
    replicas = _with_barriers(tuple(one for one, _ in found), assignment, profile)
    timelines = tuple(times for _, times in found)
    # In one stage, both passes of a micro-batch are one call, but not with recomputation.
    recomputes = any(assignment.recompute)
    live = [
        (replica.in_flight if recomputes else 1,) if times is None else times.peak_live
        for replica, times in zip(assignment.replicas, timelines, strict=True)
    ]
    return Prediction(
        step_seconds=max(one.seconds for one in replicas) + profile.step_overhead_seconds,
        replicas=replicas,
        memory=predict_memory(
            assignment,
            profile.model,
            profile.cluster,
            live,
            [one.compute_seconds + one.bubble_seconds for one in replicas],
        ),
        timelines=timelines,
    )


def _with_barriers(
    replicas: tuple[ReplicaPrediction, ...], assignment: Assignment, profile: CostProfile
) -> tuple[ReplicaPrediction, ...]:
    """Return the replicas with the time for which they wait for each other in mid-model."""
    if not step_has_barriers(assignment, profile.model):
        return replicas
    passes = seconds_with_barriers(assignment, profile)
    longer = [max(passes, one.compute_seconds + one.bubble_seconds) for one in replicas]
    return tuple(
        dataclasses.replace(
            one,
            bubble_seconds=seconds - one.compute_seconds,
            utilization=tuple(
                used
                * one.seconds
                / (one.seconds + seconds - one.compute_seconds - one.bubble_seconds)
                for used in one.utilization
            ),
        )
        for one, seconds in zip(replicas, longer, strict=True)
    )


def update_seconds(assignment: Assignment, profile: CostProfile) -> dict[int, float]:
    """Return for each owner how long its updates take, with adding up the sums of its devices."""
    cluster, seconds = profile.cluster, dict[int, float]()
    shared: dict[tuple[int, ...], list[int]] = {}
    holders = holders_of(assignment.replicas, len(assignment.owners))
    for place, owner in enumerate(assignment.owners):
        if owner == EACH_MACHINE:
            shared.setdefault(holders[place], []).append(place)
            continue
        took = owner_update_seconds(place, owner, profile, num_sums=len(holders[place]))
        seconds[owner] = seconds.get(owner, 0.0) + took
    for devices, places in shared.items():
        of_type = {
            name: sum(times[place].update_seconds for place in places)
            for name, times in profile.times.items()
        }
        for here in by_machine(devices, cluster).values():
            for device in here:
                took = of_type[cluster.devices[device].type] / len(here)
                seconds[device] = seconds.get(device, 0.0) + took
    return seconds


def owner_update_seconds(
    place: int, owner: int, profile: CostProfile, *, num_sums: int = 1
) -> float:
    """Return how long a device, or the host, takes to update all of a layer.

    Args:
        place: Of the layer.
        owner: Of the device, or `HOST_OWNER`.
        profile: What it costs.
        num_sums: How many devices hand over a sum of gradients.
    """
    if owner == HOST_OWNER:
        # It adds the sums up, reads the gradient, and reads and writes what it owns.
        layer = profile.model.layers[place]
        added = num_sums + 1 if num_sums > 1 else 0
        moved = 2 * layer.owned_bytes + layer.gradient_bytes * (1 + added)
        return moved / profile.cluster.machines[0].host_update_bytes_per_second
    times = profile.times[profile.cluster.devices[owner].type][place]
    return times.update_seconds + (num_sums - 1) * times.accumulate_seconds


@dataclass(frozen=True, slots=True)
class _Weights:
    """What the weights of a replica cost.

    Args:
        arrival_seconds: Until they are there.
        departure_seconds: Until their gradients are with their owners.
        update_seconds: The longest update by one of its devices, or by the host.
    """

    arrival_seconds: float
    departure_seconds: float
    update_seconds: float

    @classmethod
    def of(
        cls,
        replica: ReplicaAssignment,
        travel: Mapping[int, ExchangeSeconds],
        update: Mapping[int, float],
    ) -> _Weights:
        return cls(
            max(travel[device].arrival for device in replica.devices),
            max(travel[device].departure for device in replica.devices),
            max(update.get(owner, 0.0) for owner in (*replica.devices, HOST_OWNER)),
        )


def _alike(replica: ReplicaAssignment, profile: CostProfile) -> object:
    """Return what makes replicas take the same time: all but which devices of a type they use."""
    cluster = profile.cluster
    pairs = itertools.pairwise(replica.devices)
    return (
        tuple((cluster.devices[s.device].type, s.first, s.end) for s in replica.spans),
        numbered_devices(replica),
        tuple(cluster.link(one, other) for one, other in pairs),
        (replica.samples, replica.num_micro_batches, replica.in_flight, replica.schedule),
    )


def _replica(
    replica: ReplicaAssignment, assignment: Assignment, profile: CostProfile, weights: _Weights
) -> tuple[ReplicaPrediction, Timeline | None]:
    has_barriers = step_has_barriers(assignment, profile.model)
    passes = [
        span_seconds(span, replica, assignment.recompute, profile, has_barriers=has_barriers)
        for span in replica.spans
    ]
    count = replica.num_micro_batches
    busy = [count * (forward + backward) for forward, backward in passes]
    times = (
        pipeline_timeline(replica, passes, assignment.recompute, profile)
        if len(passes) > 1
        else None
    )
    makespan = busy[0] if times is None else times.makespan
    busiest = _busiest(replica, busy)
    # Weights arrive while the first micro-batch runs, gradients leave while the last one does.
    exposed = max(0.0, weights.arrival_seconds - sum(forward for forward, _ in passes)) + max(
        0.0, weights.departure_seconds - sum(backward for _, backward in passes)
    )
    seconds = makespan + exposed + weights.update_seconds
    return ReplicaPrediction(
        compute_seconds=busiest,
        bubble_seconds=makespan - busiest,
        communication_seconds=exposed,
        update_seconds=weights.update_seconds,
        utilization=tuple(one / seconds if seconds else 0.0 for one in busy),
    ), times


def _busiest(replica: ReplicaAssignment, busy: Sequence[float]) -> float:
    """Return how long the busiest device computes; it may have several stages."""
    of_devices: dict[int, float] = {}
    for span, seconds in zip(replica.spans, busy, strict=True):
        of_devices[span.device] = of_devices.get(span.device, 0.0) + seconds
    return max(of_devices.values())
