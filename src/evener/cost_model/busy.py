"""Busy seconds of each device in a step: forward and backward passes, without waiting."""

from __future__ import annotations

from evener.cost_model.assignment import Assignment
from evener.cost_model.barriers import step_has_barriers
from evener.cost_model.passes import span_seconds
from evener.profile import CostProfile


def busy_seconds(assignment: Assignment, profile: CostProfile) -> dict[int, float]:
    """Return the busy seconds in a step by device index.

    Args:
        assignment: Layers and samples of each device.
        profile: Costs of the layers on each device.
    """
    found: dict[int, float] = {}
    has_barriers = step_has_barriers(assignment, profile.model)
    for replica in assignment.replicas:
        for span in replica.spans:
            forward, backward = span_seconds(
                span, replica, assignment.recompute, profile, has_barriers=has_barriers
            )
            seconds = replica.num_micro_batches * (forward + backward)
            found[span.device] = found.get(span.device, 0.0) + seconds
    return found
