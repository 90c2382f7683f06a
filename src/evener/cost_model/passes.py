"""Seconds of the passes of a stage, and the timeline of a pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from evener.cost_model.assignment import ReplicaAssignment, Span
from evener.plan.parts import Replica, ScheduleName, Stage
from evener.profile import CostProfile, ModelCosts
from evener.schedule.replica_schedule import Schedule, schedule_for
from evener.schedule.task import Task
from evener.schedule.timing import Timeline, timeline


def span_seconds(
    span: Span,
    replica: ReplicaAssignment,
    recompute: tuple[bool, ...],
    profile: CostProfile,
    *,
    has_barriers: bool = False,
) -> tuple[float, float]:
    """Return the seconds of the forward and of the backward pass of a micro-batch in a stage.

    The backward pass includes the mean time of adding gradients to those of earlier micro-batches.

    Args:
        span: Stage.
        replica: Replica of the stage.
        recompute: Whether each layer is recomputed.
        profile: Costs of the layers.
        has_barriers: Whether the step has barriers; then the passes of the layers up to the last
            barrier are separate calls.
    """
    micro_batch = replica.micro_batch
    times = profile.times[profile.cluster.devices[span.device].type]
    last_barrier = profile.model.last_barrier if has_barriers else -1
    is_separate = passes_are_separate(span.end, recompute)
    forward = backward = 0.0
    for index in span.layers:
        is_recomputed, separate = recompute[index], is_separate or index <= last_barrier
        forward += times[index].forward(micro_batch)
        backward += times[index].backward_seconds(
            micro_batch, recompute=is_recomputed, separate=separate
        )
        backward += replica.accumulations * times[index].accumulate_seconds
    return forward, backward


def weights_part(index: int, model: ModelCosts) -> float:
    """Return the fraction of a layer's backward time spent on the gradients of its weights.

    It is not measured: half is assumed, as for a matrix product or a convolution, and 0 for layers
    without weights.
    """
    return 0.5 if model.layers[index].weight_bytes else 0.0


def weights_seconds(
    span: Span, replica: ReplicaAssignment, recompute: tuple[bool, ...], profile: CostProfile
) -> float:
    """Return the seconds of a stage's backward pass that zero-bubble schedules defer.

    Args:
        span: Stage.
        replica: Replica of the stage.
        recompute: Whether each layer is recomputed.
        profile: Costs of the layers.
    """
    times = profile.times[profile.cluster.devices[span.device].type]
    separate = passes_are_separate(span.end, recompute)
    total = 0.0
    for index in span.layers:
        layer = times[index]
        # Recomputation belongs to the gradients of activations, which are not deferred.
        backward = layer.backward_seconds(replica.micro_batch, recompute=False, separate=separate)
        total += (
            weights_part(index, profile.model) * backward
            + replica.accumulations * layer.accumulate_seconds
        )
    return total


def passes_are_separate(end: int, recompute: Sequence[bool]) -> bool:
    """Whether the forward and backward passes of a stage are separate calls.

    Only the last stage can fuse them.

    Args:
        end: Index of the last layer of the stage, plus 1.
        recompute: Whether each layer is recomputed; if any is, no passes are fused.
    """
    return end < len(recompute) or any(recompute)


def numbered_devices(replica: ReplicaAssignment) -> tuple[int, ...]:
    """Return the device of each stage, numbered from 0 in the order of their first stages."""
    order = {device: k for k, device in enumerate(dict.fromkeys(s.device for s in replica.spans))}
    return tuple(order[span.device] for span in replica.spans)


def pipeline_timeline(
    replica: ReplicaAssignment,
    passes: list[tuple[float, float]],
    recompute: tuple[bool, ...],
    profile: CostProfile,
) -> Timeline:
    """Return the timeline of a pipeline; transfers between stages overlap no computation."""
    deferred = [0.0] * len(passes)
    if replica.schedule == "zero_bubble":
        deferred = [weights_seconds(span, replica, recompute, profile) for span in replica.spans]
    schedule = _schedule(
        numbered_devices(replica),
        replica.num_micro_batches,
        replica.in_flight,
        replica.schedule,
    )
    return timeline(
        schedule,
        lambda task: _task_seconds(task, passes, deferred),
        transfer=_transfer(replica, profile),
    )


def _task_seconds(
    task: Task, passes: Sequence[tuple[float, float]], deferred: Sequence[float]
) -> float:
    forward, backward = passes[task.stage]
    if task.kind == "forward":
        return forward
    return deferred[task.stage] if task.kind == "weights" else backward - deferred[task.stage]


def _transfer(replica: ReplicaAssignment, profile: CostProfile) -> Callable[[Task, Task], float]:
    cluster, layers = profile.cluster, profile.model.layers
    seconds: list[float] = []
    for before, after in zip(replica.spans, replica.spans[1:], strict=False):
        num_bytes = layers[before.end - 1].boundary_bytes * replica.micro_batch
        link = cluster.link(before.device, after.device)
        seconds.append(0.0 if before.device == after.device else link.seconds(num_bytes))

    def between(task: Task, needed: Task) -> float:
        return 0.0 if task.stage == needed.stage else seconds[min(task.stage, needed.stage)]

    return between


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
