"""How long the passes of a stage take, and when those of a pipeline run."""

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

    Adding up gradients, which all micro-batches but the first do, is spread over all.

    Args:
        span: The stage.
        replica: Of the stage.
        recompute: Whether each layer is computed again.
        profile: What layers cost.
        has_barriers: Whether the step has barriers: the passes of layers up to the last one are
            separate calls.
    """
    micro_batch = replica.micro_batch
    times = profile.times[profile.cluster.devices[span.device].type]
    last_barrier = profile.model.last_barrier if has_barriers else -1
    is_separate = passes_are_separate(span.end, recompute)
    forward = backward = 0.0
    for place in span.layers:
        is_recomputed, separate = recompute[place], is_separate or place <= last_barrier
        forward += times[place].forward(micro_batch)
        backward += times[place].backward_seconds(
            micro_batch, recompute=is_recomputed, separate=separate
        )
        backward += replica.accumulations * times[place].accumulate_seconds
    return forward, backward


def weights_part(place: int, model: ModelCosts) -> float:
    """Return which part of a layer's backward pass is the gradients of its weights.

    A profile does not measure the two apart. Of a product of two matrices, and of a convolution, it
    is half; of a layer without weights it is nothing.
    """
    return 0.5 if model.layers[place].weight_bytes else 0.0


def weights_seconds(
    span: Span, replica: ReplicaAssignment, recompute: tuple[bool, ...], profile: CostProfile
) -> float:
    """Return the seconds of a stage's backward pass that zero-bubble schedules may put off.

    Args:
        span: The stage.
        replica: Of the stage.
        recompute: Whether each layer is computed again.
        profile: What layers cost.
    """
    times = profile.times[profile.cluster.devices[span.device].type]
    separate = passes_are_separate(span.end, recompute)
    total = 0.0
    for place in span.layers:
        one = times[place]
        # Activations are computed again for the gradients of activations.
        backward = one.backward_seconds(replica.micro_batch, recompute=False, separate=separate)
        total += (
            weights_part(place, profile.model) * backward
            + replica.accumulations * one.accumulate_seconds
        )
    return total


def passes_are_separate(end: int, recompute: Sequence[bool]) -> bool:
    """Whether a stage computes its passes in two calls, as all but the last stage do.

    Args:
        end: The place behind the last layer of the stage.
        recompute: Whether each layer is computed again; if any is, no passes are one call.
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
    """Return when the tasks of a pipeline run; what crosses stages is hidden by nothing."""
    late = [0.0] * len(passes)
    if replica.schedule == "zero_bubble":
        late = [weights_seconds(span, replica, recompute, profile) for span in replica.spans]
    schedule = _schedule(
        numbered_devices(replica),
        replica.num_micro_batches,
        replica.in_flight,
        replica.schedule,
    )
    return timeline(
        schedule,
        lambda task: _task_seconds(task, passes, late),
        transfer=_transfer(replica, profile),
    )


def _task_seconds(
    task: Task, passes: Sequence[tuple[float, float]], late: Sequence[float]
) -> float:
    forward, backward = passes[task.stage]
    if task.kind == "forward":
        return forward
    return late[task.stage] if task.kind == "weights" else backward - late[task.stage]


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
