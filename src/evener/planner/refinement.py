"""Refinement of the best plans, once devices, cuts and shares are chosen.

::

    recomputed layers         as few as memory requires              `recomputing`
    zero bubble               plans that consist of pipelines        `pipelining`
    interleaved stages        plans of a single pipeline             `pipelining`

Each starts from the best plans that fit, and from those that would be the best with unlimited
memory. For few devices a local search follows, as for all plans.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import EACH_MACHINE, HOST_OWNER, Assignment, ReplicaAssignment
from evener.cost_model.ownership import spread_owners
from evener.planner.candidates import Candidate, PlanEvaluator, is_interleaved
from evener.planner.groupings import MOST_FOR_ALL, Grouping
from evener.planner.pipelining import (
    in_micro_batches,
    interleaved,
    interleaved_counts,
    with_schedule,
)
from evener.planner.recomputing import give_back, swaps, with_all_recomputed
from evener.planner.recut import recut

MOST_GAIN = 1.5
"""Largest slowdown of a pipeline that is still tried with other schedules."""

_MOST_STARTS = 8
_MOST_STARTS_OF_MANY = 2
_MOST_RECUT, _MOST_INTERLEAVED = 3, 16
_PROMISING = 1.15
"""Largest slowdown of a plan that the local search still tries to improve."""

_MOST_SWAPPED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start of a refinement.

    Args:
        seconds: Seconds of a step, by the formula for pipelines.
        grouping: Devices of each replica.
        assignment: Layers that each device computes and owns.
        lacks_memory: Whether it was found without memory limits, and no plan that fits is as fast.
    """

    seconds: float
    grouping: Grouping
    assignment: Assignment
    lacks_memory: bool = False

    @property
    def has_stages(self) -> bool:
        """Whether every replica is a pipeline."""
        return all(len(replica.spans) > 1 for replica in self.assignment.replicas)


def refine(
    starts: Sequence[Start], evaluator: PlanEvaluator, least_seconds: float, *, host: bool
) -> list[Candidate]:
    """Return plans with other schedules, and with fewer recomputed layers.

    Args:
        starts: Plans of which the best are refined.
        evaluator: Evaluator of the plans.
        least_seconds: Weighed seconds of the best plan so far; see `PlanEvaluator.rank`.
        host: Whether the host may own variables.
    """
    refinement = _Refinement(evaluator, least_seconds, host=host)
    return [
        *refinement.recomputed(starts),
        *refinement.rescheduled(starts),
        *refinement.interleaved(starts),
    ]


_Tried = tuple[float, Grouping, Assignment]


class _Refinement:
    """Refinement of several plans.

    Args:
        evaluator: See `refine`.
        least_seconds: See `refine`.
        host: See `refine`.
    """

    def __init__(self, evaluator: PlanEvaluator, least_seconds: float, *, host: bool) -> None:
        self._evaluator = evaluator
        self._host = host
        self._profile = evaluator.profile
        self._choices = evaluator.choices
        self._least = least_seconds
        self._few = len(evaluator.profile.cluster.devices) <= MOST_FOR_ALL
        self._most = _MOST_STARTS if self._few else _MOST_STARTS_OF_MANY
        self._most_interleaved = _MOST_INTERLEAVED if self._few else _MOST_STARTS_OF_MANY

    def recomputed(self, starts: Sequence[Start]) -> Iterator[Candidate]:
        """Yield plans with as few recomputed layers as memory allows."""
        if not self._choices.recompute:
            return
        tried: list[_Tried] = []
        lacking = self._best(start for start in starts if start.lacks_memory)
        recomputed = self._best(start for start in starts if any(start.assignment.recompute))
        for start in _distinct((*lacking, *recomputed)):
            tried += self._fitting(start, [start.assignment.replicas])
        yield from self._polished(tried, self._choices.num_micro_batches)

    def rescheduled(self, starts: Sequence[Start]) -> Iterator[Candidate]:
        """Yield plans of pipelines with other schedules."""
        for schedule in self._choices.schedules:
            tried: list[_Tried] = []
            for number, start in enumerate(self._best(s for s in starts if s.has_stages)):
                most = max(replica.num_micro_batches for replica in start.assignment.replicas)
                counts = [n for n in self._choices.num_micro_batches if most / 4 <= n <= 2 * most]
                if not self._few:
                    counts = [n for n in counts if n in (most // 2, most)]
                replicas = start.assignment.replicas
                ways = [*with_schedule(replicas, schedule, counts)]
                if self._few and len(replicas) == 1 and number < _MOST_RECUT:
                    # Another schedule needs other memory, and so maybe other cuts.
                    recompute = start.assignment.recompute
                    for other in recut(replicas[0], recompute, self._profile):
                        ways += with_schedule([other], schedule, ())
                tried += self._fitting(start, dict.fromkeys(ways))
            yield from self._polished(tried, self._choices.num_micro_batches)

    def interleaved(self, starts: Sequence[Start]) -> Iterator[Candidate]:
        """Yield plans of one pipeline whose devices have several stages each."""
        num_layers = len(self._profile.model.layers)
        # With several replicas, every turn of a stage would fetch its weights again.
        alone = (
            start for start in starts if start.has_stages and len(start.assignment.replicas) == 1
        )
        # Several starts lead to the same stages.
        ways: dict[ReplicaAssignment, tuple[float, Start]] = {}
        for start in self._best(alone):
            (replica,) = start.assignment.replicas
            num_devices = len(replica.spans)
            most = min(self._choices.most_rounds, num_layers // num_devices)
            for num_rounds in range(2, most + 1):
                for count in self._counts(num_devices, replica.samples):
                    for seconds, way in interleaved(
                        replica, num_rounds, count, self._profile, self._least
                    ):
                        ways.setdefault(way, (seconds, start))
        tried: list[_Tried] = []
        least = heapq.nsmallest(self._most_interleaved, ways, key=lambda way: ways[way][0])
        for way in least:
            _, start = ways[way]
            tried += self._fitting(start, [(way,)])
        for plan in self._first(tried):
            counts = self._counts(len(plan[1][0]), plan[2].batch_size)
            yield from self._polished([plan], counts)

    def _counts(self, num_devices: int, samples: int) -> list[int]:
        return interleaved_counts(num_devices, self._choices.num_micro_batches, samples)

    def _fitting(
        self, start: Start, ways: Iterable[tuple[ReplicaAssignment, ...]]
    ) -> Iterator[_Tried]:
        """Yield plans with other replicas that fit into memory, with the seconds of a step.

        If replicas do not fit, other owners are tried, then more micro-batches.
        """
        none = (False,) * len(self._profile.model.layers)
        for replicas in ways:
            fewest = _Fewest(self._evaluator, self._least * _PROMISING)
            for more in self._in_more_micro_batches(replicas):
                found: list[_Tried] = []
                for owners in self._owners(start, more):
                    assignment = Assignment(replicas=more, owners=owners, recompute=none)
                    least = fewest.assignment(assignment)
                    if least is not None:
                        found.append((fewest.seconds(assignment), start.grouping, least))
                        if not any(least.recompute):
                            break
                if found:
                    yield min(found, key=lambda plan: plan[0])
                    break

    def _owners(
        self, start: Start, replicas: Sequence[ReplicaAssignment]
    ) -> Iterator[tuple[int, ...]]:
        """Yield the owners to try for replicas on the devices of a start."""
        layers, cluster = self._profile.model.layers, self._profile.cluster
        spread = spread_owners(layers, replicas, cluster)
        ways = [spread]
        if self._few and EACH_MACHINE not in spread:
            if not any(map(is_interleaved, replicas)):
                ways.insert(0, start.assignment.owners)
            if self._host:
                ways.append((HOST_OWNER,) * len(layers))
        yield from dict.fromkeys(ways)

    def _in_more_micro_batches(
        self, replicas: tuple[ReplicaAssignment, ...]
    ) -> Iterator[tuple[ReplicaAssignment, ...]]:
        """Yield replicas, then the same with increasing numbers of micro-batches."""
        yield replicas
        if self._few and not any(is_interleaved(replica) for replica in replicas):
            least = min(replica.num_micro_batches for replica in replicas)
            for count in self._choices.num_micro_batches:
                if count > least:
                    yield tuple(
                        in_micro_batches(replica, max(count, replica.num_micro_batches))
                        for replica in replicas
                    )

    def _best(self, starts: Iterable[Start]) -> list[Start]:
        """Return the fastest starts that refinement may make the best plan."""
        promising = (start for start in starts if start.seconds < self._least * MOST_GAIN)
        return _distinct(sorted(promising, key=lambda start: start.seconds))[: self._most]

    def _first(self, tried: Iterable[_Tried]) -> list[_Tried]:
        """Return the fastest plans that fit, one per combination of devices and owners.

        Devices without samples are ignored.
        """
        first: dict[object, _Tried] = {}
        for plan in sorted(tried, key=lambda plan: plan[0]):
            if plan[0] < self._least * _PROMISING:
                groups = tuple(replica.devices for replica in plan[2].replicas)
                first.setdefault((groups, plan[2].owners), plan)
        return list(first.values())[: self._most]

    def _polished(self, tried: Iterable[_Tried], counts: Sequence[int]) -> Iterator[Candidate]:
        """Yield the best plans after a local search."""
        for seconds, grouping, assignment in self._first(tried):
            if self._few:
                better = self._changed(grouping, assignment, counts)
                self._least = min(self._least, self._evaluator.seconds(better))
                yield self._evaluator.candidate(grouping, better)
            elif seconds < self._least:
                yield self._evaluator.candidate(grouping, assignment)

    def _changed(
        self, grouping: Grouping, assignment: Assignment, counts: Sequence[int]
    ) -> Assignment:
        """Return a plan after a local search, with as few recomputed layers as possible."""
        fewest = _Fewest(self._evaluator)
        changed = self._evaluator.polished(
            grouping, assignment, counts, host=self._host, seconds=fewest.seconds
        )
        better = fewest.assignment(changed)
        assert better is not None, "the search starts from a plan that fits"
        return self._swapped(better)

    def _swapped(self, assignment: Assignment) -> Assignment:
        """Return a plan in which no exchange of recomputed layers makes a step faster."""
        least = self._evaluator.seconds(assignment)
        for _ in range(_MOST_SWAPPED):
            tried = [
                (self._evaluator.seconds(changed), changed)
                for changed in swaps(assignment, self._profile)
            ]
            seconds, better = min(tried, key=lambda plan: plan[0], default=(math.inf, assignment))
            if seconds >= least * (1 - 1e-6):
                break
            least, assignment = seconds, better
        return assignment


def _distinct(starts: Iterable[Start]) -> list[Start]:
    """Return starts without those that differ only in recomputed layers, which are chosen anew."""
    first: dict[object, Start] = {}
    for start in starts:
        first.setdefault((start.assignment.replicas, start.assignment.owners), start)
    return list(first.values())


class _Fewest:
    """Search for the fewest layers to recompute, with the seconds of a step.

    Args:
        evaluator: Evaluator of the plans.
        most_seconds: Upper limit of the seconds of a step; slower plans are rejected.
    """

    def __init__(self, evaluator: PlanEvaluator, most_seconds: float = math.inf) -> None:
        self._evaluator = evaluator
        self._known: dict[object, tuple[float, Assignment | None]] = {}
        self._least = most_seconds

    def assignment(self, assignment: Assignment) -> Assignment | None:
        """Return a plan with the fewest recomputed layers; None if it does not fit."""
        return self._found(assignment)[1]

    def seconds(self, assignment: Assignment) -> float:
        """Return the seconds of its step; infinite if it does not fit, or another was faster."""
        return self._found(assignment)[0]

    def _found(self, assignment: Assignment) -> tuple[float, Assignment | None]:
        key = assignment.replicas, assignment.owners
        if key not in self._known:
            self._known[key] = self._fewest(assignment)
            self._least = min(self._least, self._known[key][0])
        return self._known[key]

    def _fewest(self, assignment: Assignment) -> tuple[float, Assignment | None]:
        evaluator, profile = self._evaluator, self._evaluator.profile
        none = dataclasses.replace(assignment, recompute=(False,) * len(assignment.recompute))
        prediction = evaluator.predict(none)
        seconds = evaluator.weighed(none, prediction)
        if evaluator.fits(prediction):
            return seconds, none
        # Recomputation never makes a step faster.
        can_recompute = evaluator.choices.recompute and _is_usual(assignment)
        if not can_recompute or seconds >= self._least:
            return math.inf, None
        every = with_all_recomputed(assignment, profile)
        prediction = evaluator.predict(every)
        if not any(every.recompute) or not evaluator.fits(prediction):
            return math.inf, None
        fewer, prediction = give_back(every, prediction, profile, evaluator.predict)
        return evaluator.weighed(fewer, prediction), fewer


def _is_usual(assignment: Assignment) -> bool:
    """Whether no weight gradients are deferred, which would keep activations alive."""
    return all(replica.schedule == "1f1b" for replica in assignment.replicas)
