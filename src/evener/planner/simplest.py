"""The two simplest plans beside the best: the best device alone, and even shares on all."""

from __future__ import annotations

from evener.cost_model.conversion import plan_of
from evener.plan.plan import Plan
from evener.planner.alternatives import alternatives, lacks
from evener.planner.planning import Planned


def plans_to_try(planned: Planned) -> tuple[Plan, ...]:
    """Return a plan with the two simplest ones, from the simplest to the least simple.

    A simple plan that does not fit into memory by its prediction is left out.

    Args:
        planned: Best plan by its prediction.

    Returns:
        The best device alone, even shares on all devices, and the plan, each once.
    """
    profile = planned.profile
    fitting = [
        other
        for other in alternatives(profile, planned.batch_size)
        if len(other.assignment.replicas[0].spans) == 1
        and not lacks(other.prediction.memory, profile)
    ]
    alone = [other for other in fitting if len(other.assignment.replicas) == 1]
    even = [other for other in fitting if len(other.assignment.replicas) > 1]
    alone.sort(key=lambda other: other.prediction.step_seconds)
    found: list[Plan] = []
    is_there = False
    for other in (*alone[:1], *even[:1]):
        if (other.assignment.replicas, other.assignment.recompute) == (
            planned.assignment.replicas,
            planned.assignment.recompute,
        ):
            is_there = True
            found.append(planned.plan)
        else:
            found.append(plan_of(other.assignment, profile.model, profile.cluster))
    return tuple(found if is_there else [*found, planned.plan])
