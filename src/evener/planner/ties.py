"""Ties: what differs by less than the noise of measuring is decided for the simpler plan.

::

    one device  <  even shares  <  uneven shares  <  pipeline
"""

from __future__ import annotations

from collections.abc import Iterable

from evener.cost_model.assignment import Assignment
from evener.cost_model.memory import shortages
from evener.planner.alternatives import alternatives
from evener.planner.candidates import Candidate
from evener.profile import CostProfile


def simplest_of_equal(
    best: Candidate, considered: Iterable[Candidate], profile: CostProfile, *, noise: float
) -> Candidate:
    """Return the simplest plan that is as fast as the best, up to the noise of measuring.

    Args:
        best: Fastest plan of a search.
        considered: Other plans of the search.
        profile: Costs of the layers on the devices.
        noise: Fraction of the step time within which two plans are equally fast.
    """
    simple = (
        Candidate(
            grouping=tuple(replica.devices for replica in other.assignment.replicas),
            assignment=other.assignment,
            prediction=other.prediction,
            shortages=tuple(shortages(other.prediction.memory, profile.cluster)),
        )
        for other in alternatives(profile, best.assignment.batch_size)
    )
    most = best.prediction.step_seconds * (1 + noise)
    equal = [
        candidate
        for candidate in (*considered, *simple)
        if candidate.fits and candidate.prediction.step_seconds <= most
    ]
    # The first of several: plans of the same kind keep the order of the search.
    return min(
        (best, *equal),
        key=lambda candidate: (
            complexity(candidate.assignment),
            _is_split_in_time(candidate.assignment),
            candidate is not best,
            candidate.prediction.step_seconds,
        ),
    )


def _is_split_in_time(assignment: Assignment) -> bool:
    """Whether replicas have micro-batches that no pipeline needs."""
    return any(len(r.spans) == 1 and r.num_micro_batches > 1 for r in assignment.replicas)


def complexity(assignment: Assignment) -> int:
    """Return how complex a layout is, from 0 for one device to 3 for a pipeline."""
    replicas = assignment.replicas
    if any(len(replica.spans) > 1 for replica in replicas):
        return 3
    if len(replicas) == 1:
        return 0
    samples = [replica.samples for replica in replicas]
    return 1 if max(samples) - min(samples) <= 1 else 2
