"""What is tried on the best plans when devices, cuts and shares are found.

::

    layers computed again     as few as memory asks for              `recomputing`
    zero bubble               of plans of pipelines alone            `pipelining`
    interleaved stages        of one pipeline over all its devices   `pipelining`

Each begins from the best of the plans that were found, and from those that would be the best if
memory had no end. Small changes follow, as for all plans, where devices are few.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from evener.cost_model.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    spread_owners,
)
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
"""By how much pipelines may be slower that are tried with schedules that have fewer bubbles."""

_MOST_STARTS = 8
_MOST_STARTS_OF_MANY = 2
_MOST_RECUT, _MOST_INTERLEAVED = 3, 16
_PROMISING = 1.15
"""By how much a plan may be slower than the best before small changes are tried on it."""

_MOST_SWAPPED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A plan from which others are tried.

    Args:
        seconds: Of a step, by the formula for pipelines.
        grouping: The devices of each replica.
        assignment: What each computes and owns.
        lacks_memory: Whether it was found as if memory had no end, and no plan that fits is as
            fast.
    """

    seconds: float
    grouping: Grouping
    assignment: Assignment
    lacks_memory: bool = False

    @property
    def has_stages(self) -> bool:
        """Whether every replica is a pipeline."""
        return all(len(one.spans) > 1 for one in self.assignment.replicas)


def refine(
    starts: Sequence[Start], evaluator: PlanEvaluator, least_seconds: float, *, host: bool
) -> list[Candidate]:
    """Return plans with other schedules, and with fewer layers computed again.

    Args:
        starts: Among which the best are tried.
        evaluator: Says which plan is better.
        least_seconds: Of the best plan without these, as `PlanEvaluator.rank` has it.
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
    """Tries changes on plans.

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
        """Yield plans in which as few layers are computed again as memory asks for."""
        if not self._choices.recompute:
            return
        tried: list[_Tried] = []
        lacking = self._best(one for one in starts if one.lacks_memory)
        recomputed = self._best(one for one in starts if any(one.assignment.recompute))
        for one in _distinct((*lacking, *recomputed)):
            tried += self._fitting(one, [one.assignment.replicas])
        yield from self._polished(tried, self._choices.num_micro_batches)

    def rescheduled(self, starts: Sequence[Start]) -> Iterator[Candidate]:
        """Yield plans of pipelines with other schedules."""
        for schedule in self._choices.schedules:
            tried: list[_Tried] = []
            for number, one in enumerate(self._best(s for s in starts if s.has_stages)):
                most = max(replica.num_micro_batches for replica in one.assignment.replicas)
                counts = [n for n in self._choices.num_micro_batches if most / 4 <= n <= 2 * most]
                if not self._few:
                    counts = [n for n in counts if n in (most // 2, most)]
                replicas = one.assignment.replicas
                ways = [*with_schedule(replicas, schedule, counts)]
                if self._few and len(replicas) == 1 and number < _MOST_RECUT:
                    # Memory may ask for other cuts than under 1F1B.
                    recompute = one.assignment.recompute
                    for other in recut(replicas[0], recompute, self._profile):
                        ways += with_schedule([other], schedule, ())
                tried += self._fitting(one, dict.fromkeys(ways))
            yield from self._polished(tried, self._choices.num_micro_batches)

    def interleaved(self, starts: Sequence[Start]) -> Iterator[Candidate]:
        """Yield plans of one pipeline whose devices have several stages each."""
        num_layers = len(self._profile.model.layers)
        # Of several replicas, every turn of a stage would fetch its weights anew.
        alone = (one for one in starts if one.has_stages and len(one.assignment.replicas) == 1)
        # Several starts lead to the same stages.
        ways: dict[ReplicaAssignment, tuple[float, Start]] = {}
        for one in self._best(alone):
            (replica,) = one.assignment.replicas
            num_devices = len(replica.spans)
            most = min(self._choices.most_rounds, num_layers // num_devices)
            for num_rounds in range(2, most + 1):
                for count in self._counts(num_devices, replica.samples):
                    for seconds, way in interleaved(
                        replica, num_rounds, count, self._profile, self._least
                    ):
                        ways.setdefault(way, (seconds, one))
        tried: list[_Tried] = []
        least = heapq.nsmallest(self._most_interleaved, ways, key=lambda way: ways[way][0])
        for way in least:
            _, one = ways[way]
            tried += self._fitting(one, [(way,)])
        for one in self._first(tried):
            counts = self._counts(len(one[1][0]), one[2].batch_size)
            yield from self._polished([one], counts)

    def _counts(self, num_devices: int, samples: int) -> list[int]:
        return interleaved_counts(num_devices, self._choices.num_micro_batches, samples)

    def _fitting(
        self, start: Start, ways: Iterable[tuple[ReplicaAssignment, ...]]
    ) -> Iterator[_Tried]:
        """Yield other replicas for a plan, within memory, with the time of a step.

        Where they do not fit, other owners are tried, and then more micro-batches.
        """
        none = (False,) * len(self._profile.model.layers)
        for replicas in ways:
            fewest = _Fewest(self._evaluator, self._least * _PROMISING)
            for more in self._in_more_micro_batches(replicas):
                found: list[_Tried] = []
                for owners in self._owners(start, more):
                    one = Assignment(replicas=more, owners=owners, recompute=none)
                    least = fewest.assignment(one)
                    if least is not None:
                        found.append((fewest.seconds(one), start.grouping, least))
                        if not any(least.recompute):
                            break
                if found:
                    yield min(found, key=lambda one: one[0])
                    break

    def _owners(
        self, start: Start, replicas: Sequence[ReplicaAssignment]
    ) -> Iterator[tuple[int, ...]]:
        """Yield the owners that are tried for replicas on the devices of a start."""
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
        """Yield replicas, and the same with more and more micro-batches."""
        yield replicas
        if self._few and not any(is_interleaved(one) for one in replicas):
            least = min(one.num_micro_batches for one in replicas)
            for count in self._choices.num_micro_batches:
                if count > least:
                    yield tuple(
                        in_micro_batches(one, max(count, one.num_micro_batches)) for one in replicas
                    )

    def _best(self, starts: Iterable[Start]) -> list[Start]:
        """Return the fastest starts that may become better than what was found."""
        promising = (one for one in starts if one.seconds < self._least * MOST_GAIN)
        return _distinct(sorted(promising, key=lambda one: one.seconds))[: self._most]

    def _first(self, tried: Iterable[_Tried]) -> list[_Tried]:
        """Return the fastest of all that fit, one for the same devices and owners.

        The devices of a grouping that get no samples do not count.
        """
        first: dict[object, _Tried] = {}
        for one in sorted(tried, key=lambda one: one[0]):
            if one[0] < self._least * _PROMISING:
                groups = tuple(replica.devices for replica in one[2].replicas)
                first.setdefault((groups, one[2].owners), one)
        return list(first.values())[: self._most]

    def _polished(self, tried: Iterable[_Tried], counts: Sequence[int]) -> Iterator[Candidate]:
        """Yield the best plans, changed until no small change makes them better."""
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
        """Return a plan that no small change makes better, with as few layers computed again."""
        fewest = _Fewest(self._evaluator)
        changed = self._evaluator.polished(
            grouping, assignment, counts, host=self._host, seconds=fewest.seconds
        )
        better = fewest.assignment(changed)
        assert better is not None, "it began with a plan that fits"
        return self._swapped(better)

    def _swapped(self, assignment: Assignment) -> Assignment:
        """Return a plan in which no other layer is computed again with profit."""
        least = self._evaluator.seconds(assignment)
        for _ in range(_MOST_SWAPPED):
            tried = [
                (self._evaluator.seconds(one), one) for one in swaps(assignment, self._profile)
            ]
            seconds, better = min(tried, key=lambda one: one[0], default=(math.inf, assignment))
            if seconds >= least * (1 - 1e-6):
                break
            least, assignment = seconds, better
        return assignment


def _distinct(starts: Iterable[Start]) -> list[Start]:
    """Return starts without those that lead to the same: what is computed again is chosen anew."""
    first: dict[object, Start] = {}
    for one in starts:
        first.setdefault((one.assignment.replicas, one.assignment.owners), one)
    return list(first.values())


class _Fewest:
    """Finds for plans the fewest layers to compute again, and the time of a step with them.

    Args:
        evaluator: Says how long a step takes.
        most_seconds: Plans that take longer are left out.
    """

    def __init__(self, evaluator: PlanEvaluator, most_seconds: float = math.inf) -> None:
        self._evaluator = evaluator
        self._known: dict[object, tuple[float, Assignment | None]] = {}
        self._least = most_seconds

    def assignment(self, assignment: Assignment) -> Assignment | None:
        """Return a plan with the fewest layers computed again; None if it does not fit."""
        return self._found(assignment)[1]

    def seconds(self, assignment: Assignment) -> float:
        """Return the time of its step; infinite if it does not fit, or another was faster."""
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
        # Nothing is faster for being computed again.
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
    """Whether no gradients of weights are put off: activations are kept for those."""
    return all(one.schedule == "1f1b" for one in assignment.replicas)
