"""How long each device computes in a step: forward and backward passes, without any waiting."""

from __future__ import annotations

from evener.cost_model.assignment import Assignment
from evener.cost_model.barriers import step_has_barriers
from evener.cost_model.passes import span_seconds
from evener.profile import CostProfile


def busy_seconds(assignment: Assignment, profile: CostProfile) -> dict[int, float]:
    """Return for each device that computes, by its place in the cluster, its seconds in a step.

    Args:
        assignment: Who computes what.
        profile: What it costs.
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
