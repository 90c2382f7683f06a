"""Time of steps with barriers, such as those of a `BatchNormalization` over the global batch.

No micro-batch passes a barrier until all micro-batches of all replicas have reached it.

::

    forward    conv norm |  conv norm |  dense ----+
    backward        conv norm |  conv norm |  dense
               phase 4        phase 3    phase 2

    phases 0, 1: forward passes up to a barrier; phase 2: the rest of the forward passes and the
    backward passes down to a barrier; phases 3, 4: the rest of the backward passes

Nothing overlaps across a barrier: the time of a step is the sum of its phases, and the time of a
phase is that of the slowest replica, which runs all its micro-batches through its part of the
pipeline. A layer counts entirely for the phase that ends with its barriers. This overestimates:
a stage may compute other layers while it waits at a barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import Assignment, ReplicaAssignment
from evener.cost_model.ownership import holders_of
from evener.profile import Cluster, CostProfile, LayerCosts, ModelCosts


@dataclass(frozen=True, slots=True)
class Phase:
    """Passes between two barriers.

    Args:
        forward: Indices of the layers whose forward passes are in the phase.
        backward: Indices of the layers whose backward passes are in the phase.
        layer: Index of the layer at whose barriers the phase ends; None at the end of the step.
        num_barriers: Number of consecutive barriers of that layer.
    """

    forward: range
    backward: range
    layer: int | None = None
    num_barriers: int = 0


def step_has_barriers(assignment: Assignment, model: ModelCosts) -> bool:
    """Whether micro-batches or replicas wait for each other in the middle of a step."""
    is_whole = len(assignment.replicas) == 1 and not is_in_parts(assignment.replicas[0])
    return assignment.has_barriers and model.last_barrier >= 0 and not is_whole


def is_in_parts(replica: ReplicaAssignment) -> bool:
    """Whether a replica computes its samples in more than one call."""
    return replica.num_micro_batches > 1 or len(replica.spans) > 1


def phases_of(layers: Sequence[LayerCosts]) -> list[Phase]:
    """Return the phases of a step in order; one phase if it has no barriers."""
    no_layers = range(0)
    phases: list[Phase] = []
    begin = 0
    for index, layer in enumerate(layers):
        if layer.forward_barriers:
            passed = range(begin, index + 1)
            phases.append(Phase(passed, no_layers, index, layer.forward_barriers))
            begin = index + 1
    rest, end = range(begin, len(layers)), len(layers)
    for index in reversed(range(len(layers))):
        if layers[index].backward_barriers:
            passed = range(index, end)
            phases.append(Phase(rest, passed, index, layers[index].backward_barriers))
            rest, end = no_layers, index
    return [*phases, Phase(rest, range(end))]


def phase_seconds(
    phase: Phase, replica: ReplicaAssignment, recompute: Sequence[bool], profile: CostProfile
) -> float:
    """Return the seconds in which a replica runs all its micro-batches through a phase."""
    count = replica.num_micro_batches
    stages = list(_stages(phase, replica, recompute, profile))
    once, longest = sum(stages), max(stages)
    if len(stages) == 1:
        return count * once
    # A transfer counts in every phase that has layers of the receiving stage.
    once += _crossing(phase, replica, profile)
    if not (phase.forward and phase.backward):
        return once + (count - 1) * longest
    return once + (count - 1) * max(longest, once / min(replica.in_flight, count))


def barrier_seconds(assignment: Assignment, model: ModelCosts, cluster: Cluster) -> list[float]:
    """Return for each layer the seconds of one barrier: sums are sent, results come back.

    The sums have one number per channel, so latency dominates.
    """
    holders = holders_of(assignment.replicas, len(model.layers))
    return [
        2 * max(cluster.link(devices[0], other).latency_seconds for other in devices[1:])
        if len(devices) > 1
        else 0.0
        for devices in holders
    ]


def seconds_with_barriers(assignment: Assignment, profile: CostProfile) -> float:
    """Return the seconds of all passes of a step with barriers."""
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
    """Yield the seconds of each stage for a micro-batch in a phase."""
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
    """Return the seconds of a micro-batch's transfers between the stages of a phase."""
    total = 0.0
    for before, after in zip(replica.spans, replica.spans[1:], strict=False):
        if before.device == after.device:
            continue
        link = profile.cluster.link(before.device, after.device)
        num_bytes = profile.model.layers[before.end - 1].boundary_bytes * replica.micro_batch
        passes = sum(before.end in layers for layers in (phase.forward, phase.backward))
        total += passes * link.seconds(num_bytes)
    return total
