"""Seconds of a step.

The passes of a pipeline between barriers, and the exchange of weights and gradients.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evener.plan.parts import Replica, ScheduleName, Stage
from evener.plan.profile import Cluster, CostProfile, LayerCosts, ModelCosts
from evener.plan.schedule import Schedule, Task, Timeline, schedule_for, timeline
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    by_machine,
    holders_of,
)


@dataclass(frozen=True, slots=True)
class Phase:
    forward: range  # Indices of the layers whose forward passes are in the phase
    backward: range  # Indices of the layers whose backward passes are in the phase
    # Index of the layer at whose barriers the phase ends; None at the end of the step
    layer: int | None = None
    num_barriers: int = 0  # Number of consecutive barriers of that layer


def step_has_barriers(assignment: Assignment, model: ModelCosts) -> bool:
    """Whether micro-batches or replicas wait for each other in the middle of a step."""
    is_whole = len(assignment.replicas) == 1 and not is_in_parts(assignment.replicas[0])
    return assignment.has_barriers and model.last_barrier >= 0 and not is_whole


def is_in_parts(replica: ReplicaAssignment) -> bool:
    """Whether a replica computes its samples in more than one call."""
    return replica.num_micro_batches > 1 or len(replica.spans) > 1


def phases_of(layers: Sequence[LayerCosts]) -> list[Phase]:
    """Return the phases of a step in order; one phase if it has no barriers.

    No micro-batch passes a barrier, such as that of a `BatchNormalization` over the global batch,
    until all micro-batches of all replicas have reached it::

        forward    conv norm |  conv norm |  dense ----+
        backward        conv norm |  conv norm |  dense
                   phase 4        phase 3    phase 2

        phases 0, 1: forward passes up to a barrier; phase 2: the rest of the forward passes and the
        backward passes down to a barrier; phases 3, 4: the rest of the backward passes

    Nothing overlaps across a barrier: the time of a step is the sum of its phases, and the time of
    a phase is that of the slowest replica, which runs all its micro-batches through its part of the
    pipeline. A layer counts entirely for the phase that ends with its barriers. This overestimates:
    a stage may compute other layers while it waits at a barrier.
    """
    no_layers = range(0)
    phases: list[Phase] = []
    begin = 0
    for index, layer in enumerate(layers):
        if layer.forward_barriers:
            phases.append(Phase(range(begin, index + 1), no_layers, index, layer.forward_barriers))
            begin = index + 1
    rest, end = range(begin, len(layers)), len(layers)
    for index, layer in reversed(list(enumerate(layers))):
        if layer.backward_barriers:
            phases.append(Phase(rest, range(index, end), index, layer.backward_barriers))
            rest, end = no_layers, index
    return [*phases, Phase(rest, range(end))]


def phase_seconds(
    phase: Phase, replica: ReplicaAssignment, recompute: Sequence[bool], profile: CostProfile
) -> float:
    count, size = replica.num_micro_batches, replica.micro_batch
    stages: list[float] = []
    for span in replica.spans:
        times = profile.times[profile.cluster.devices[span.device].type]
        seconds = 0.0
        for index in span.layers:
            if index in phase.forward:
                seconds += times[index].forward(size)
            if index in phase.backward:
                is_separate = passes_are_separate(span.end, recompute)
                seconds += times[index].backward_seconds(
                    size,
                    recompute=recompute[index],
                    separate=is_separate or index not in phase.forward,
                )
                seconds += replica.accumulations * times[index].accumulate_seconds
        stages.append(seconds)
    once, longest = sum(stages), max(stages)
    if len(stages) == 1:
        return count * once
    # A transfer counts in every phase that has layers of the receiving stage.
    for span, seconds in zip(replica.spans[1:], _transfer_seconds(replica, profile), strict=True):
        once += seconds * sum(span.first in layers for layers in (phase.forward, phase.backward))
    if not (phase.forward and phase.backward):
        return once + (count - 1) * longest
    return once + (count - 1) * max(longest, once / min(replica.in_flight, count))


def _transfer_seconds(replica: ReplicaAssignment, profile: CostProfile) -> list[float]:
    """Return the seconds of a micro-batch's transfer from each stage to the next one."""
    cluster, layers = profile.cluster, profile.model.layers
    return [
        cluster.link(before.device, after.device).seconds(
            layers[before.end - 1].boundary_bytes * replica.micro_batch
        )
        for before, after in itertools.pairwise(replica.spans)
    ]


def barrier_seconds(assignment: Assignment, model: ModelCosts, cluster: Cluster) -> list[float]:
    """Return for each layer the seconds of one barrier: sums are sent, results come back."""
    return [
        2 * max((cluster.link(first, other).latency_seconds for other in others), default=0.0)
        for first, *others in holders_of(assignment.replicas, len(model.layers))
    ]


def seconds_with_barriers(assignment: Assignment, profile: CostProfile) -> float:
    barrier = barrier_seconds(assignment, profile.model, profile.cluster)
    total = 0.0
    for phase in phases_of(profile.model.layers):
        total += max(
            phase_seconds(phase, replica, assignment.recompute, profile)
            for replica in assignment.replicas
        )
        if phase.layer is not None:
            total += phase.num_barriers * barrier[phase.layer]
    return total


def span_seconds(
    span: Span,
    replica: ReplicaAssignment,
    recompute: tuple[bool, ...],
    profile: CostProfile,
    *,
    has_barriers: bool = False,
) -> tuple[float, float]:
    """Return the seconds of the forward and of the backward pass of a micro-batch in a stage."""
    micro_batch = replica.micro_batch
    times = profile.times[profile.cluster.devices[span.device].type]
    last_barrier = profile.model.last_barrier if has_barriers else -1
    is_separate = passes_are_separate(span.end, recompute)
    forward = backward = 0.0
    for index in span.layers:
        separate = is_separate or index <= last_barrier
        forward += times[index].forward(micro_batch)
        backward += times[index].backward_seconds(
            micro_batch, recompute=recompute[index], separate=separate
        )
        backward += replica.accumulations * times[index].accumulate_seconds
    return forward, backward


def passes_are_separate(end: int, recompute: Sequence[bool]) -> bool:
    """Whether the forward and backward passes of a stage are separate calls."""
    return end < len(recompute) or any(recompute)


def numbered_devices(replica: ReplicaAssignment) -> tuple[int, ...]:
    """Return the device of each stage, numbered from 0 in the order of their first stages."""
    order = {device: k for k, device in enumerate(dict.fromkeys(s.device for s in replica.spans))}
    return tuple(order[span.device] for span in replica.spans)


def pipeline_timeline(
    replica: ReplicaAssignment, passes: list[tuple[float, float]], profile: CostProfile
) -> Timeline:
    seconds = [{"forward": forward, "backward": backward} for forward, backward in passes]
    transfers = _transfer_seconds(replica, profile)

    def between(task: Task, needed: Task) -> float:
        return 0.0 if task.stage == needed.stage else transfers[min(task.stage, needed.stage)]

    schedule = _schedule(
        numbered_devices(replica), replica.num_micro_batches, replica.in_flight, replica.schedule
    )
    return timeline(schedule, lambda task: seconds[task.stage][task.kind], transfer=between)


@functools.lru_cache(maxsize=512)
def _schedule(
    devices: tuple[int, ...], num_micro_batches: int, in_flight: int, schedule: ScheduleName
) -> Schedule:
    stages = tuple(Stage(device=f"gpu:{d}", layers=(f"{k}",)) for k, d in enumerate(devices))
    return schedule_for(
        Replica(
            share=1,
            stages=stages,
            num_micro_batches=num_micro_batches,
            in_flight=in_flight,
            schedule=schedule,
        )
    )


class ExchangeSeconds(NamedTuple):
    arrival: float = 0.0  # Seconds until its weights have arrived
    departure: float = 0.0  # Seconds until its gradients are summed on their owners


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSeconds:
    """Seconds that the weights of a replica add to a step, if no computation overlaps them."""

    arrival_seconds: float = 0.0  # Seconds until the weights have arrived
    departure_seconds: float = 0.0  # Seconds until the gradients have reached their owners
    update_seconds: float = 0.0  # Seconds of the longest update on its devices or on the host

    @classmethod
    def of(
        cls,
        devices: Iterable[int],
        travel: Mapping[int, ExchangeSeconds],
        update: Mapping[int, float],
    ) -> WeightSeconds:
        devices, none = tuple(devices), ExchangeSeconds()
        return cls(
            arrival_seconds=max(travel.get(device, none).arrival for device in devices),
            departure_seconds=max(travel.get(device, none).departure for device in devices),
            update_seconds=max(update.get(owner, 0.0) for owner in (*devices, HOST_OWNER)),
        )


def exchange_seconds(
    assignment: Assignment, model: ModelCosts, cluster: Cluster
) -> Mapping[int, ExchangeSeconds]:
    """Return the transfer seconds of weights and gradients by device index.

    ::

        owner  --- weight --->  every other device that computes the layer, once per step
        owner  <-- gradient --  the same devices, once per step

    In each direction a device transfers the layers that it computes and does not own once, and
    those that it owns once for each other device that computes them. If k devices compute the same
    layers and own equal parts of them, each sends and receives (k - 1) / k of the weights per
    direction: as much as in a ring all-reduce.
    """
    holders = holders_of(assignment.replicas, len(model.layers))
    weights = [layer.weight_bytes for layer in model.layers]
    gradients = [layer.gradient_bytes for layer in model.layers]
    arriving = _travelling(weights, holders, assignment.owners, cluster)
    if gradients == weights:
        return arriving
    leaving = _travelling(gradients, holders, assignment.owners, cluster)
    return {
        device: ExchangeSeconds(seconds.arrival, leaving[device].departure)
        for device, seconds in arriving.items()
    }


def _travelling(
    sizes: Sequence[int],
    holders: Sequence[tuple[int, ...]],
    owners: Sequence[int],
    cluster: Cluster,
) -> dict[int, ExchangeSeconds]:
    """Return the transfer seconds by device of tensors of these sizes in both directions."""
    groups: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for size, devices, owner in zip(sizes, holders, owners, strict=True):
        groups[devices][owner] += size
    machine_of = [device.machine for device in cluster.devices]
    # Bytes of each device, then those of each machine: on the bus between its devices, between them
    # and the host, on the network, and on the network in rings.
    received, sent, from_host, on_bus, with_host, on_network, in_rings = (
        defaultdict[int, float](float) for _ in range(7)
    )
    crossing: set[int] = set()

    def add_far(machine: int, devices: Sequence[int], size: int) -> None:
        if size:
            on_network[machine] += size
            crossing.update(devices)

    for devices, owned in groups.items():
        machines = by_machine(devices, cluster)
        at_home: dict[int, int] = defaultdict(int)
        for owner, size in owned.items():
            if owner >= 0:
                home = machine_of[owner]
                at_home[home] += size
                num_near = len(machines.get(home, ()))
                sent[owner] += size * (num_near - (owner in devices))
                add_far(home, [owner], size * (len(devices) - num_near))
        on_devices = sum(at_home.values())
        of_host, shared = owned.get(HOST_OWNER, 0), owned.get(EACH_MACHINE, 0)
        for machine, here in machines.items():
            # Each device fetches what other machines own over the network.
            add_far(machine, here, len(here) * (on_devices - at_home[machine]))
            if shared:
                # Machines that compute the same layers have owners of their own, and all-reduce the
                # gradients in a ring before the update: all of it counts as gradient traffic.
                in_rings[machine] += 2 * shared * (len(machines) - 1) / len(machines)
                crossing.update(here)
            in_machine = shared * (len(here) - 1) / len(here)
            for device in here:
                fetched = at_home[machine] - owned.get(device, 0) + in_machine
                received[device] += fetched
                on_bus[machine] += fetched
                sent[device] += in_machine
                from_host[device] += of_host
                with_host[machine] += of_host
    found: dict[int, ExchangeSeconds] = {}
    for device in {device for devices in groups for device in devices}:
        number = machine_of[device]
        machine = cluster.machines[number]
        is_shared = machine.shares_link
        moved = on_bus[number] if is_shared else max(received[device], sent[device])
        times = [machine.link.seconds(moved)]
        if from_host[device]:
            size = with_host[number] if is_shared else from_host[device]
            times.append(machine.host_link.seconds(size))
        departing = list(times)
        if device in crossing:
            times.append(cluster.network.seconds(on_network[number]))
            departing.append(cluster.network.seconds(on_network[number] + in_rings[number]))
        found[device] = ExchangeSeconds(max(times), max(departing))
    return found
