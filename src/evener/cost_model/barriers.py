"""Models whose replicas and micro-batches meet at layers, as at a `BatchNormalization`.

Nothing goes on behind a barrier before all micro-batches of all replicas are there.

::

    forward    conv norm |  conv norm |  dense ----+
    backward        conv norm |  conv norm |  dense
               phase 4        phase 3    phase 2

    phases 0, 1: forward passes up to a barrier; phase 2: the rest of the forward passes and the
    backward passes down to a barrier; phases 3, 4: the rest of the backward passes

Nothing overlaps across a barrier: a step takes as long as its phases one after the other, and each
of these as long as its slowest replica takes to run all its micro-batches through its part of the
pipeline. A layer counts as a whole for the phase that ends with its barriers. That is the safe
side: what a stage can do for other layers while it waits is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import Assignment, ReplicaAssignment, holders_of
from evener.profile import Cluster, CostProfile, LayerCosts, ModelCosts


@dataclass(frozen=True, slots=True)
class Phase:
    """What is computed between two barriers.

    Args:
        forward: The layers whose forward passes are in it.
        backward: The layers whose backward passes are in it.
        layer: The one at which it ends; None for the end of the step.
        num_barriers: How often the parts meet there, one time after the other.
    """

    forward: range
    backward: range
    layer: int | None = None
    num_barriers: int = 0


def step_has_barriers(assignment: Assignment, model: ModelCosts) -> bool:
    """Whether parts of the batch have to wait for each other in the middle of a step."""
    is_whole = len(assignment.replicas) == 1 and not is_in_parts(assignment.replicas[0])
    return assignment.has_barriers and model.last_barrier >= 0 and not is_whole


def is_in_parts(replica: ReplicaAssignment) -> bool:
    """Whether a replica computes its samples in more than one call."""
    return replica.num_micro_batches > 1 or len(replica.spans) > 1


def phases_of(layers: Sequence[LayerCosts]) -> list[Phase]:
    """Return what is computed between barriers, in order; of a step without any, one phase."""
    nothing = range(0)
    phases: list[Phase] = []
    begin = 0
    for place, layer in enumerate(layers):
        if layer.forward_barriers:
            done = range(begin, place + 1)
            phases.append(Phase(done, nothing, place, layer.forward_barriers))
            begin = place + 1
    rest, end = range(begin, len(layers)), len(layers)
    for place in reversed(range(len(layers))):
        if layers[place].backward_barriers:
            done = range(place, end)
            phases.append(Phase(rest, done, place, layers[place].backward_barriers))
            rest, end = nothing, place
    return [*phases, Phase(rest, range(end))]


def phase_seconds(
    phase: Phase, replica: ReplicaAssignment, recompute: Sequence[bool], profile: CostProfile
) -> float:
    """Return how long a replica takes to run all its micro-batches through a phase."""
    count = replica.num_micro_batches
    stages = list(_stages(phase, replica, recompute, profile))
    once, longest = sum(stages), max(stages)
    if len(stages) == 1:
        return count * once
    # Every transfer counts in every phase through whose stages it goes, whatever its direction.
    once += _crossing(phase, replica, profile)
    if not (phase.forward and phase.backward):
        return once + (count - 1) * longest
    return once + (count - 1) * max(longest, once / min(replica.in_flight, count))


def barrier_seconds(assignment: Assignment, model: ModelCosts, cluster: Cluster) -> list[float]:
    """Return for each layer how long one of its barriers takes: sums go there, and results back.

    The sums are as large as the channels of a layer: it is latency that counts.
    """
    holders = holders_of(assignment.replicas, len(model.layers))
    return [
        2 * max(cluster.link(devices[0], other).latency_seconds for other in devices[1:])
        if len(devices) > 1
        else 0.0
        for devices in holders
    ]


def seconds_with_barriers(assignment: Assignment, profile: CostProfile) -> float:
    """Return the time of all passes of a step in which parts of the batch meet."""
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


def _stages(
    phase: Phase, replica: ReplicaAssignment, recompute: Sequence[bool], profile: CostProfile
) -> Iterator[float]:
    """Yield what each stage takes for a micro-batch in a phase."""
    size = replica.micro_batch
    for span in replica.spans:
        times = profile.times[profile.cluster.devices[span.device].type]
        forward = (times[k].forward(size) for k in span.layers if k in phase.forward)
        backward = (
            times[k].backward_seconds(
                size,
                recompute=recompute[k],
                separate=k not in phase.forward or span.end < len(recompute) or any(recompute),
            )
            + replica.accumulations * times[k].accumulate_seconds
            for k in span.layers
            if k in phase.backward
        )
        yield sum(forward) + sum(backward)


def _crossing(phase: Phase, replica: ReplicaAssignment, profile: CostProfile) -> float:
    """Return how long a micro-batch travels between the stages of a phase."""
    total = 0.0
    for before, after in zip(replica.spans, replica.spans[1:], strict=False):
        if before.device == after.device:
            continue
        link = profile.cluster.link(before.device, after.device)
        num_bytes = profile.model.layers[before.end - 1].boundary_bytes * replica.micro_batch
        passes = sum(before.end in layers for layers in (phase.forward, phase.backward))
        total += passes * link.seconds(num_bytes)
    return total
