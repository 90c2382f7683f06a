"""Prediction of the step time and of the memory of every device, from a profile.

::

    replica    | weights arrive          | gradients leave              | update |
               | forward passes          | backward passes              |        |

Weights arrive during the forward passes of the first micro-batch, gradients are sent during the
backward passes of the last one; of a transfer and the passes that it overlaps, the longer counts.
The step time is that of the slowest replica.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import EACH_MACHINE, HOST_OWNER, Assignment, ReplicaAssignment
from evener.cost_model.barriers import seconds_with_barriers, step_has_barriers
from evener.cost_model.conversion import assignment_of
from evener.cost_model.exchange import ExchangeSeconds, exchange_seconds
from evener.cost_model.memory import MemoryPrediction, predict_memory
from evener.cost_model.ownership import by_machine, holders_of
from evener.cost_model.passes import numbered_devices, pipeline_timeline, span_seconds
from evener.plan.plan import Plan
from evener.profile import CostProfile
from evener.schedule.timing import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPrediction:
    """Time of one replica in a step, in seconds.

    Args:
        compute_seconds: Seconds that its busiest device computes.
        bubble_seconds: Seconds that its busiest device waits for others.
        communication_seconds: Transfer seconds of weights and gradients that no computation hides.
        update_seconds: Seconds of the longest update on its devices.
        arrival_seconds: Part of ``communication_seconds`` before the first pass.
        passes: Seconds of the forward and the backward pass of a micro-batch in each stage.
        busy_seconds: Seconds that each stage computes.
    """

    compute_seconds: float
    bubble_seconds: float
    communication_seconds: float
    update_seconds: float
    arrival_seconds: float
    passes: tuple[tuple[float, float], ...]
    busy_seconds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The sum of all parts."""
        return (
            self.compute_seconds
            + self.bubble_seconds
            + self.communication_seconds
            + self.update_seconds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted costs of a step.

    Args:
        step_seconds: Seconds of the whole step.
        replicas: Time of each replica with samples.
        memory: Peak memory by device index, that of the host under `HOST_OWNER`.
        timelines: Timeline of each replica; None for a replica of one stage.
    """

    step_seconds: float
    replicas: tuple[ReplicaPrediction, ...]
    memory: Mapping[int, MemoryPrediction]
    timelines: tuple[Timeline | None, ...]

    @property
    def slowest(self) -> ReplicaPrediction:
        """The slowest replica."""
        return max(self.replicas, key=lambda replica: replica.seconds)


def predict_plan(plan: Plan, profile: CostProfile, batch_size: int) -> Prediction:
    """Return the prediction of a plan.

    Args:
        plan: Plan for devices of the profile's cluster and layers of its model.
        profile: Costs of the layers on the devices.
        batch_size: Samples of the global batch.

    Raises:
        PlanError: If the plan names devices or layers that the profile does not have.
    """
    return predict(assignment_of(plan, profile.model, profile.cluster, batch_size), profile)


def predict(assignment: Assignment, profile: CostProfile) -> Prediction:
    """Return the prediction of an assignment."""
    travel = exchange_seconds(assignment, profile.model, profile.cluster)
    update = update_seconds(assignment, profile)
    # In large clusters most replicas are alike.
    known: dict[object, tuple[ReplicaPrediction, Timeline | None]] = {}
    found: list[tuple[ReplicaPrediction, Timeline | None]] = []
    for replica in assignment.replicas:
        weights = _Weights.of(replica, travel, update)
        key = (_alike(replica, profile), weights)
        if key not in known:
            known[key] = _replica(replica, assignment, profile, weights)
        found.append(known[key])
    replicas = _with_barriers(tuple(replica for replica, _ in found), assignment, profile)
    timelines = tuple(times for _, times in found)
    # A single stage fuses both passes of a micro-batch unless it recomputes.
    recomputes = any(assignment.recompute)
    live = [
        (replica.in_flight if recomputes else 1,) if times is None else times.peak_live
        for replica, times in zip(assignment.replicas, timelines, strict=True)
    ]
    return Prediction(
        step_seconds=max(replica.seconds for replica in replicas) + profile.step_overhead_seconds,
        replicas=replicas,
        memory=predict_memory(
            assignment,
            profile.model,
            profile.cluster,
            live,
            [replica.compute_seconds + replica.bubble_seconds for replica in replicas],
        ),
        timelines=timelines,
    )


def busy_seconds(assignment: Assignment, prediction: Prediction) -> dict[int, float]:
    """Return the seconds of forward and backward passes in a step by device index."""
    found: dict[int, float] = {}
    for replica, times in zip(assignment.replicas, prediction.replicas, strict=True):
        for span, seconds in zip(replica.spans, times.busy_seconds, strict=True):
            found[span.device] = found.get(span.device, 0.0) + seconds
    return found


def _with_barriers(
    replicas: tuple[ReplicaPrediction, ...], assignment: Assignment, profile: CostProfile
) -> tuple[ReplicaPrediction, ...]:
    """Return the replicas with the time that they wait at barriers."""
    if not step_has_barriers(assignment, profile.model):
        return replicas
    passes = seconds_with_barriers(assignment, profile)
    longer = [max(passes, replica.compute_seconds + replica.bubble_seconds) for replica in replicas]
    return tuple(
        dataclasses.replace(replica, bubble_seconds=seconds - replica.compute_seconds)
        for replica, seconds in zip(replicas, longer, strict=True)
    )


def update_seconds(assignment: Assignment, profile: CostProfile) -> dict[int, float]:
    """Return the update seconds of each owner, including the addition of other devices' sums."""
    cluster, seconds = profile.cluster, dict[int, float]()
    shared: dict[tuple[int, ...], list[int]] = {}
    holders = holders_of(assignment.replicas, len(assignment.owners))
    for layer, owner in enumerate(assignment.owners):
        if owner == EACH_MACHINE:
            shared.setdefault(holders[layer], []).append(layer)
            continue
        took = owner_update_seconds(layer, owner, profile, num_sums=len(holders[layer]))
        seconds[owner] = seconds.get(owner, 0.0) + took
    for devices, layers in shared.items():
        of_type = {
            name: sum(times[layer].update_seconds for layer in layers)
            for name, times in profile.times.items()
        }
        for here in by_machine(devices, cluster).values():
            for device in here:
                took = of_type[cluster.devices[device].type] / len(here)
                seconds[device] = seconds.get(device, 0.0) + took
    return seconds


def owner_update_seconds(
    layer_index: int, owner: int, profile: CostProfile, *, num_sums: int = 1
) -> float:
    """Return the seconds in which a device or the host updates the variables of a layer.

    Args:
        layer_index: Index of the layer.
        owner: Device index, or `HOST_OWNER`.
        profile: Costs of the layers.
        num_sums: Number of devices that send a sum of gradients.
    """
    if owner == HOST_OWNER:
        # The host adds the sums, reads the gradient, and reads and writes the variables.
        layer = profile.model.layers[layer_index]
        added = num_sums + 1 if num_sums > 1 else 0
        moved = 2 * layer.owned_bytes + layer.gradient_bytes * (1 + added)
        return moved / profile.cluster.machines[0].host_update_bytes_per_second
    times = profile.times[profile.cluster.devices[owner].type][layer_index]
    return times.update_seconds + (num_sums - 1) * times.accumulate_seconds


@dataclass(frozen=True, slots=True)
class _Weights:
    """Exchange and update seconds of a replica's weights.

    Args:
        arrival_seconds: Seconds until the weights have arrived.
        departure_seconds: Seconds until the gradients have reached their owners.
        update_seconds: Seconds of the longest update on its devices or on the host.
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
    """Return a key that is equal for replicas of the same time, on other devices of the type."""
    cluster = profile.cluster
    pairs = itertools.pairwise(replica.devices)
    return (
        tuple((cluster.devices[s.device].type, s.first, s.end) for s in replica.spans),
        numbered_devices(replica),
        tuple(cluster.link(source, target) for source, target in pairs),
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
    # The first micro-batch overlaps the arrival of weights, the last one that of gradients.
    arrival = max(0.0, weights.arrival_seconds - sum(forward for forward, _ in passes))
    departure = max(0.0, weights.departure_seconds - sum(backward for _, backward in passes))
    return ReplicaPrediction(
        compute_seconds=busiest,
        bubble_seconds=makespan - busiest,
        communication_seconds=arrival + departure,
        update_seconds=weights.update_seconds,
        arrival_seconds=arrival,
        passes=tuple(passes),
        busy_seconds=tuple(busy),
    ), times


def _busiest(replica: ReplicaAssignment, busy: Sequence[float]) -> float:
    """Return the busy seconds of the busiest device; a device may have several stages."""
    of_devices: dict[int, float] = {}
    for span, seconds in zip(replica.spans, busy, strict=True):
        of_devices[span.device] = of_devices.get(span.device, 0.0) + seconds
    return max(of_devices.values())
