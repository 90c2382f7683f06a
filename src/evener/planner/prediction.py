"""Prediction of a step: seconds and peak bytes per device, with the reasons; calibration by a run.

A measured run scales the curves of each kind of device; the profiler measures layers on an idle
machine, and in a run devices share memory, power and cores, and fetch weights while they compute::

                     measured busy seconds of its devices in a step of the run
    factor of a kind = ------------------------------------------------------
       of device      predicted busy seconds for the plan of the run
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from evener.base.text import format_seconds
from evener.errors import PlanError, ProfileError
from evener.plan.plan import Plan
from evener.plan.profile import Cluster, ClusterDevice, CostProfile, ModelCosts
from evener.plan.schedule import Timeline
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    assignment_of,
    by_machine,
    holders_of,
    spread_owners,
)
from evener.planner.memory import MemoryPrediction, entering_bytes, predict_memory
from evener.planner.run_times import MeasuredRun
from evener.planner.step_time import (
    WeightSeconds,
    exchange_seconds,
    numbered_devices,
    pipeline_timeline,
    seconds_with_barriers,
    span_seconds,
    step_has_barriers,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPrediction:
    compute_seconds: float  # Seconds that its busiest device computes
    bubble_seconds: float  # Seconds that its busiest device waits for others
    # Transfer seconds of weights and gradients that no computation hides
    communication_seconds: float
    update_seconds: float  # Seconds of the longest update on its devices
    arrival_seconds: float  # Part of ``communication_seconds`` before the first pass
    # Seconds of the forward and the backward pass of a micro-batch in each stage
    passes: tuple[tuple[float, float], ...]
    busy_seconds: tuple[float, ...]  # Seconds that each stage computes
    timeline: Timeline | None  # None for a replica of one stage

    @property
    def seconds(self) -> float:
        return (
            self.compute_seconds
            + self.bubble_seconds
            + self.communication_seconds
            + self.update_seconds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    step_seconds: float  # Seconds of the whole step
    replicas: tuple[ReplicaPrediction, ...]  # Time of each replica with samples
    # Peak memory by device index, that of the host under `HOST_OWNER`
    memory: Mapping[int, MemoryPrediction]

    @property
    def slowest(self) -> ReplicaPrediction:
        return max(self.replicas, key=lambda replica: replica.seconds)


def predict_plan(plan: Plan, profile: CostProfile, batch_size: int) -> Prediction:
    return predict(assignment_of(plan, profile.model, profile.cluster, batch_size), profile)


def predict(assignment: Assignment, profile: CostProfile) -> Prediction:
    """Return the prediction of an assignment.

    ::

        replica    | weights arrive          | gradients leave              | update |
                   | forward passes          | backward passes              |        |

    Weights arrive during the forward passes of the first micro-batch, gradients are sent during the
    backward passes of the last one; of a transfer and the passes that it overlaps, the longer
    counts. The step time is that of the slowest replica.
    """
    travel = exchange_seconds(assignment, profile.model, profile.cluster)
    update = update_seconds(assignment, profile)
    has_barriers = step_has_barriers(assignment, profile.model)
    # In large clusters most replicas are alike: of the same time, on other devices of the type.
    devices, link = profile.cluster.devices, profile.cluster.link
    known: dict[object, ReplicaPrediction] = {}
    replicas: list[ReplicaPrediction] = []
    for replica in assignment.replicas:
        weights = WeightSeconds.of(replica.devices, travel, update)
        key = (
            tuple((devices[span.device].type, span.first, span.end) for span in replica.spans),
            numbered_devices(replica),
            tuple(itertools.starmap(link, itertools.pairwise(replica.devices))),
            (replica.samples, replica.num_micro_batches, replica.in_flight, replica.schedule),
            weights,
        )
        if key not in known:
            known[key] = _predict_replica(
                replica, assignment.recompute, profile, weights, has_barriers=has_barriers
            )
        replicas.append(known[key])
    if has_barriers:
        # Replicas wait for each other at barriers.
        passes = seconds_with_barriers(assignment, profile)
        replicas = [
            dataclasses.replace(r, bubble_seconds=max(passes - r.compute_seconds, r.bubble_seconds))
            for r in replicas
        ]
    # A single stage fuses both passes of a micro-batch unless it recomputes.
    recomputes = any(assignment.recompute)
    live = [
        times.timeline.peak_live if times.timeline else (replica.in_flight if recomputes else 1,)
        for replica, times in zip(assignment.replicas, replicas, strict=True)
    ]
    makespans = [replica.compute_seconds + replica.bubble_seconds for replica in replicas]
    return Prediction(
        step_seconds=max(replica.seconds for replica in replicas) + profile.step_overhead_seconds,
        replicas=tuple(replicas),
        memory=predict_memory(assignment, profile.model, profile.cluster, live, makespans),
    )


def busy_seconds(assignment: Assignment, prediction: Prediction) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for replica, times in zip(assignment.replicas, prediction.replicas, strict=True):
        for device, seconds in zip(replica.devices, times.busy_seconds, strict=True):
            found[device] += seconds
    return dict(found)


def update_seconds(assignment: Assignment, profile: CostProfile) -> dict[int, float]:
    cluster = profile.cluster
    seconds: dict[int, float] = defaultdict(float)
    shared: dict[tuple[int, ...], list[int]] = defaultdict(list)
    holders = holders_of(assignment.replicas, len(assignment.owners))
    for layer, owner in enumerate(assignment.owners):
        if owner == EACH_MACHINE:
            shared[holders[layer]].append(layer)
        else:
            num_sums = len(holders[layer])
            seconds[owner] += owner_update_seconds(layer, owner, profile, num_sums=num_sums)
    for devices, layers in shared.items():
        of_type = {
            name: sum(times[layer].update_seconds for layer in layers)
            for name, times in profile.times.items()
        }
        for here in by_machine(devices, cluster).values():
            for device in here:
                seconds[device] += of_type[cluster.devices[device].type] / len(here)
    return dict(seconds)


def owner_update_seconds(
    layer_index: int, owner: int, profile: CostProfile, *, num_sums: int = 1
) -> float:
    if owner == HOST_OWNER:
        # The host adds the sums, reads the gradient, and reads and writes the variables.
        layer = profile.model.layers[layer_index]
        added = num_sums + 1 if num_sums > 1 else 0
        moved = 2 * layer.owned_bytes + layer.gradient_bytes * (1 + added)
        return moved / profile.cluster.machines[0].host_update_bytes_per_second
    times = profile.times[profile.cluster.devices[owner].type][layer_index]
    return times.update_seconds + (num_sums - 1) * times.accumulate_seconds


def _predict_replica(
    replica: ReplicaAssignment,
    recompute: tuple[bool, ...],
    profile: CostProfile,
    weights: WeightSeconds,
    *,
    has_barriers: bool,
) -> ReplicaPrediction:
    passes = [
        span_seconds(span, replica, recompute, profile, has_barriers=has_barriers)
        for span in replica.spans
    ]
    busy = [replica.num_micro_batches * (forward + backward) for forward, backward in passes]
    # A device may have several stages.
    of_devices: dict[int, float] = defaultdict(float)
    for device, seconds in zip(replica.devices, busy, strict=True):
        of_devices[device] += seconds
    busiest = max(of_devices.values())
    times = pipeline_timeline(replica, passes, profile) if len(passes) > 1 else None
    makespan = busy[0] if times is None else times.makespan
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
        timeline=times,
    )


MOST_SAMPLES = 2**20
"""Largest batch size that is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    # Micro-batches per device, at least 1; they are computed one after the other
    num_micro_batches: int = 1
    # Whether the backward pass recomputes every layer whose activations are larger than its inputs
    recompute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryByKind:
    weights: int  # Trained weights that the device owns
    optimizer_state: int  # Optimizer state of these weights
    other_variables: int  # Variables that are not trained, such as moving means
    fetched: int  # Weights fetched from other owners
    # Gradients of the device, accumulated and of the current micro-batch, and those that other
    # devices send for the weights that it owns
    gradients: int
    activations: int  # Tensors saved by forward passes for backward passes
    samples: int  # Input samples of its share of the batch
    workspace: int  # Temporary tensors of the layer that is being computed

    @property
    def total(self) -> int:
        return sum(dataclasses.asdict(self).values())


def estimate_memory(
    model: ModelCosts, batch_size: int, way: Way | None = None, *, num_devices: int = 1
) -> MemoryByKind:
    """Return the peak memory of the device that needs the most; no times are needed for it.

    ::

        bytes
          |                     ___---  workspace      )
          |             ___---          samples        )  grow with the samples of a micro-batch
          |     ___---                  activations    )
          |_________________________    gradients
          |_________________________    weights, optimizer state: on one device, or sharded
          +------------------------- samples

    Every device has the same share of the batch, and the variables are sharded over the devices as
    the engine does it. The number of samples of a micro-batch is rounded up.

    Example:
        >>> from evener.clusters import model_named
        >>> found = estimate_memory(model_named("resnet-50").costs, 32)
        >>> found.optimizer_state == 2 * found.weights
        True
    """
    way = way or Way()
    num_used = min(num_devices, batch_size)
    samples = math.ceil(math.ceil(batch_size / num_used) / way.num_micro_batches)
    return _fullest(model, samples, way, num_used)


def largest_batch(
    model: ModelCosts, memory_bytes: int, way: Way | None = None, *, num_devices: int = 1
) -> int:
    way = way or Way()
    at_once = num_devices * way.num_micro_batches

    def is_too_much(samples: int) -> bool:
        return _fullest(model, samples, way, num_devices).total > memory_bytes

    candidates = range(1, max(1, MOST_SAMPLES // at_once) + 1)
    return at_once * bisect.bisect_left(candidates, True, key=is_too_much)


def usable_memory(total_bytes: int) -> int:
    """Return the bytes of a device's memory that a plan may use.

    The driver and libraries take 1 GiB, or 2 GiB on a device of 40 GiB or more, as in the clusters
    that evener knows.

    >>> usable_memory(24 * 2**30) == 23 * 2**30
    True
    """
    gib = 2**30
    return max(0, total_bytes - (2 if total_bytes >= 40 * gib else 1) * gib)


def recomputed_layers(model: ModelCosts) -> tuple[bool, ...]:
    return tuple(
        layer.activation_bytes > entering_bytes(model, index)
        for index, layer in enumerate(model.layers)
    )


def _fullest(model: ModelCosts, samples: int, way: Way, num_devices: int) -> MemoryByKind:
    layers = model.layers
    cluster = Cluster(
        devices=tuple(ClusterDevice(name=f"gpu:{k}", type="gpu") for k in range(num_devices))
    )
    replicas = tuple(
        ReplicaAssignment(
            samples=samples * way.num_micro_batches,
            spans=(Span(device, 0, len(layers)),),
            num_micro_batches=way.num_micro_batches,
        )
        for device in range(num_devices)
    )
    assignment = Assignment(
        replicas=replicas,
        owners=spread_owners(layers, replicas, cluster),
        recompute=recomputed_layers(model) if way.recompute else (False,) * len(layers),
    )
    needs = predict_memory(assignment, model, cluster, [(1,)] * num_devices)
    device = max(needs, key=lambda index: needs[index].total)
    found = needs[device]
    owned = [
        layer for layer, owner in zip(layers, assignment.owners, strict=True) if owner == device
    ]
    # All samples of a step are sent at its start; at the moment of the peak some may be gone.
    sent = model.input_bytes * samples * way.num_micro_batches
    of_samples = min(sent, found.activations)
    return MemoryByKind(
        weights=sum(layer.weight_bytes for layer in owned),
        optimizer_state=sum(layer.optimizer_bytes for layer in owned),
        other_variables=sum(layer.state_bytes for layer in owned),
        fetched=round(found.fetched),
        gradients=round(found.gradients),
        activations=round(found.activations - of_samples),
        samples=round(of_samples),
        workspace=round(found.workspace),
    )


def without_updates(run: MeasuredRun, profile: CostProfile) -> MeasuredRun:
    """Return a run whose busy seconds exclude updates.

    On one device without micro-batches, both are timed together. They are assumed to deviate from
    the prediction by the same factor, so passes are the same fraction of the measured as of the
    predicted time.
    """
    times = run.times
    if not times.with_updates:
        return run
    try:
        found = predict_plan(run.plan, profile, times.batch_size)
    except PlanError:
        return run
    (replica,) = found.replicas
    passes = replica.compute_seconds / replica.seconds if replica.seconds else 1.0
    busy = {name: seconds * passes for name, seconds in times.busy_seconds.items()}
    return dataclasses.replace(
        run, times=dataclasses.replace(times, busy_seconds=busy, with_updates=False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    # Predicted busy seconds of a step, summed over the devices of the kind
    predicted_seconds: float
    measured_seconds: float  # Measured busy seconds of a step, summed over the same devices

    @property
    def value(self) -> float:
        return self.measured_seconds / self.predicted_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    profile: CostProfile  # Profile with scaled times
    # Factors by kind of device, without kinds that computed nothing in the run
    factors: Mapping[str, Factor]
    step_seconds: float  # Prediction of the scaled profile for a step of the run
    run: MeasuredRun  # Measured run

    def lines(self) -> list[str]:
        found: list[str] = []
        for kind in self.profile.times:
            factor = self.factors.get(kind)
            if factor is None:
                found.append(f"{kind}: as it was, because it computed nothing in the run")
                continue
            measured = format_seconds(factor.measured_seconds)
            predicted = format_seconds(factor.predicted_seconds)
            found.append(f"{kind}: times {factor.value:.2f} (computed {measured}, not {predicted})")
        measured = format_seconds(self.run.times.step_seconds)
        predicted = format_seconds(self.step_seconds)
        return [*found, f"a step of the run took {measured}; with these times, {predicted}"]


def calibrate(profile: CostProfile, run: MeasuredRun) -> Calibrated:
    """Scale the times of a profile to those of a run, for each kind of device.

    Only forward and backward passes and the accumulation of gradients are scaled; updates, links
    and the overhead of a step stay.
    """
    kinds = {device.name: device.type for device in profile.cluster.devices}
    for name in run.times.busy_seconds:
        hardware = run.times.hardware.get(name, "")
        # The hardware name of a CPU has its threads, which a run on stand-ins does not set.
        is_other = name.startswith("gpu") and hardware != kinds.get(name)
        if name not in kinds or is_other:
            there = ", ".join(f"{device} ({kind})" for device, kind in kinds.items())
            raise ProfileError(
                "PROF-052",
                f"The run computed on {name} ({hardware}), which is no device of the profile.",
                why=f"The profile has {there}.",
                fix="Measure the script on the devices of the run, with --devices.",
            )
    plan = run.plan.with_shares(run.times.samples)
    try:
        found = assignment_of(plan, profile.model, profile.cluster, run.times.batch_size)
    except PlanError as error:
        raise ProfileError(
            "PROF-053",
            "The plan of the run is not one for the layers of the profile.",
            why=error.what,
            fix="Give the profile, or the script, that the plan of the run was made for.",
        ) from error
    predicted: dict[str, float] = defaultdict(float)
    measured: dict[str, float] = defaultdict(float)
    for index, seconds in busy_seconds(found, predict(found, profile)).items():
        predicted[profile.cluster.devices[index].type] += seconds
    for name, seconds in run.times.busy_seconds.items():
        measured[kinds[name]] += seconds
    factors = {
        kind: Factor(predicted_seconds=seconds, measured_seconds=measured[kind])
        for kind, seconds in predicted.items()
        if seconds > 0 and measured[kind] > 0
    }
    times = dict(profile.times)
    for kind, factor in factors.items():
        times[kind] = tuple(
            dataclasses.replace(
                layer.scaled(factor.value),
                accumulate_seconds=layer.accumulate_seconds * factor.value,
            )
            for layer in times[kind]
        )
    scaled = dataclasses.replace(profile, times=times)
    after = predict_plan(plan, scaled, run.times.batch_size).step_seconds
    return Calibrated(profile=scaled, factors=factors, step_seconds=after, run=run)
