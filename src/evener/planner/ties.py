"""Ties: what differs by less than the noise of measuring is decided for the simpler plan.

::

    one device  <  even shares  <  uneven shares  <  pipeline

Micro-batches that no pipeline needs are there to save memory. Times of layers at few samples are
too uncertain to split a batch for speed: each micro-batch is another call of every task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from evener.cost_model.assignment import Assignment
from evener.cost_model.memory import shortages
from evener.cost_model.prediction import Prediction, predict
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
    candidates = [
        best,
        *considered,
        *(
            _candidate(other.assignment, other.prediction, profile)
            for other in alternatives(profile, best.assignment.batch_size)
        ),
    ]
    if noise:
        candidates = [_without_needless_micro_batches(each, profile) for each in candidates]
        if candidates[0] is not best:
            best = min(filter(_fits, candidates), key=_seconds)
    most = _seconds(best) * (1 + noise)
    equal = [each for each in candidates if each.fits and _seconds(each) <= most]
    # The first of several: plans of the same kind keep the order of the search.
    return min(
        (best, *equal),
        key=lambda candidate: (
            complexity(candidate.assignment),
            _is_split_in_time(candidate.assignment),
            candidate is not best,
            _seconds(candidate),
        ),
    )


def _fits(candidate: Candidate) -> bool:
    return candidate.fits


def _seconds(candidate: Candidate) -> float:
    return candidate.prediction.step_seconds


def _candidate(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> Candidate:
    return Candidate(
        grouping=tuple(replica.devices for replica in assignment.replicas),
        assignment=assignment,
        prediction=prediction,
        shortages=tuple(shortages(prediction.memory, profile.cluster)),
    )


def _without_needless_micro_batches(candidate: Candidate, profile: CostProfile) -> Candidate:
    """Return a candidate whose replicas without stages are not split, if it fits then."""
    assignment = candidate.assignment
    if not _is_split_in_time(assignment):
        return candidate
    replicas = tuple(
        dataclasses.replace(replica, num_micro_batches=1, in_flight=1)
        if len(replica.spans) == 1
        else replica
        for replica in assignment.replicas
    )
    whole = dataclasses.replace(assignment, replicas=replicas)
    found = _candidate(whole, predict(whole, profile), profile)
    return found if found.fits else candidate


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
