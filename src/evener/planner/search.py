"""The search: groupings of devices are solved, the best are refined, the fastest that fits wins.

::

    groupings --> for each: cuts, micro-batches, shares, with unlimited memory
              --> in the order of that time: the same within memory, until no other can be better

If memory is short, several rules for owners are tried, each without recomputation and with it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evener.plan.profile import CostProfile, Curve
from evener.planner.assignment import HOST_OWNER, Assignment, ReplicaAssignment, spread_owners
from evener.planner.candidates import Candidate, Choices, PlanEvaluator, recut
from evener.planner.groups import MOST_FOR_ALL, GroupCosts, Grouping, groupings_of
from evener.planner.prediction import Prediction, owner_update_seconds, recomputed_layers
from evener.planner.refinement import MOST_GAIN, Start, refine
from evener.planner.solving import UNLIMITED, UNLIMITED_HOST, Solver, owner_rules_to_try

_SLACK = 1.25
"""Factor by which the formula for pipelines may overestimate the timeline."""

_SLACK_OF_MANY = 1.02
"""The same for clusters of which only some groupings are tried."""

_MOST_PREDICTED = 100
_MOST_OF_MANY = 6
_MOST_RECUT, _MOST_POLISHED = 24, 6
_MOST_LACKING = 6

_MOST_CUTS = 8
"""Number of other cuts of a plan to try before it is compared with others."""

_NO_SLOWER = 1.0005
"""Factor within which a plan that fits counts as fast as one with unlimited memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Result of a search."""

    best: Candidate | None
    considered: tuple[Candidate, ...]

    @property
    def assignment(self) -> Assignment:
        assert self.best is not None
        return self.best.assignment

    @property
    def prediction(self) -> Prediction:
        assert self.best is not None
        return self.best.prediction


def search_plan(
    profile: CostProfile, batch_size: int, choices: Choices | None = None
) -> SearchResult:
    """Return the fastest plan for a batch size that fits into the memory of every device."""
    return _Search(profile, batch_size, choices or Choices()).run()


class _Search:
    def __init__(self, profile: CostProfile, batch_size: int, choices: Choices) -> None:
        self._profile = profile
        self._batch_size = batch_size
        self._evaluator = PlanEvaluator(profile, choices)
        machines = profile.cluster.machines
        # The engine supports the host as an owner only on a single machine.
        on_host = any("cpu:" in device.name for device in profile.cluster.devices)
        self._host = choices.host and len(machines) == 1 and not on_host
        near = machines[0].host_link.bytes_per_second > machines[0].link.bytes_per_second
        self._host_may_be_fast = self._host and (near or self._host_updates_fast())
        self._few = len(profile.cluster.devices) <= MOST_FOR_ALL
        every = recomputed_layers(profile.model)
        recomputed = [(False,) * len(every)]
        if choices.recompute and any(every):
            recomputed.append(every)
        self._solvers = [
            Solver(
                GroupCosts(profile, layers),
                batch_size,
                choices.num_micro_batches,
                as_fast=1.0005 + choices.simpler_within,
            )
            for layers in recomputed
        ]

    def run(self) -> SearchResult:
        solved: list[Start] = []
        ideals: list[Start] = []
        least_found = math.inf
        slack = _SLACK if self._few else _SLACK_OF_MANY
        for least, grouping in self._groupings():
            # Too long by the formula to examine a plan.
            if least > least_found * slack:
                break
            ideal = self._ideal(grouping)
            if ideal is None or ideal.seconds > least_found * MOST_GAIN:
                continue
            if ideal.seconds <= least_found * slack:
                found = list(self._within_memory(ideal))
                fastest = min((start.seconds for start in found), default=math.inf)
                least_found = min(least_found, fastest)
                lacks = fastest > ideal.seconds * _NO_SLOWER
                ideal = dataclasses.replace(ideal, lacks_memory=lacks)
                solved += found
            ideals.append(ideal)
        best, considered = self._ranked(solved, ideals)
        without = {start.grouping for start in solved}
        unlimited = [
            start for start in ideals if start.lacks_memory and start.grouping not in without
        ]
        considered += [
            self._evaluator.candidate(start.grouping, start.assignment)
            for start in sorted(unlimited, key=lambda start: start.seconds)[:_MOST_LACKING]
        ]
        considered.sort(key=self._evaluator.rank)
        return SearchResult(best=best, considered=tuple(considered))

    def _groupings(self) -> list[tuple[float, Grouping]]:
        """Return the groupings with a lower bound of their seconds, in ascending order."""
        devices = self._profile.cluster.devices

        @functools.cache
        def sample_seconds(type_name: str) -> float:
            """Return the least seconds per sample on a type of device, over all batch sizes."""
            times = self._profile.times[type_name]
            total = Curve.total(each for layer in times for each in (layer.forward, layer.backward))
            best = min(seconds / samples for samples, seconds in total.points)
            if len(total.points) > 1:
                (first, low), (last, high) = total.points[-2:]
                best = min(best, (high - low) / (last - first))
            return max(best, 1e-15)

        def least_seconds(grouping: Grouping) -> float:
            used = (devices[device].type for group in grouping for device in group)
            return self._batch_size / sum(1 / sample_seconds(name) for name in used)

        groupings = groupings_of(self._profile.cluster, len(self._profile.model.layers))
        return sorted((least_seconds(grouping), grouping) for grouping in groupings)

    def _ideal(self, grouping: Grouping) -> Start | None:
        ways = [UNLIMITED, UNLIMITED_HOST] if self._host_may_be_fast else [UNLIMITED]
        solved = (self._solvers[0].solve(grouping, rules) for rules in ways)
        found = [solution for solution in solved if solution is not None]
        if not found:
            return None
        seconds, assignment = min(found, key=lambda solution: solution[0])
        return Start(seconds=seconds, grouping=grouping, assignment=assignment)

    def _within_memory(self, ideal: Start) -> Iterator[Start]:
        """Yield plans of a grouping that fit, until one is as fast as with unlimited memory."""
        grouping, cluster = ideal.grouping, self._profile.cluster
        for solver in self._solvers:
            for rules in owner_rules_to_try(grouping, cluster, host=self._host):
                solution = solver.solve(grouping, rules)
                if solution is None:
                    continue
                seconds, assignment = solution
                yield Start(seconds=seconds, grouping=grouping, assignment=assignment)
                if seconds <= ideal.seconds * _NO_SLOWER:
                    return
                if not self._few:
                    break

    def _ranked(
        self, solved: Sequence[Start], ideals: Sequence[Start]
    ) -> tuple[Candidate | None, list[Candidate]]:
        """Return the best plan by its timeline, and the best plans of other groupings."""
        evaluator = self._evaluator
        candidates = self._best_of_groupings(solved)
        if self._few:
            candidates[:_MOST_RECUT] = map(self._recut, candidates[:_MOST_RECUT])
            candidates.sort(key=evaluator.rank)
            counts = evaluator.choices.num_micro_batches
            for index, candidate in enumerate(candidates[:_MOST_POLISHED]):
                grouping = candidate.grouping
                better = evaluator.polished(grouping, candidate.assignment, counts, host=self._host)
                candidates[index] = evaluator.candidate(grouping, better)
            candidates.sort(key=evaluator.rank)
        least = evaluator.rank(candidates[0])[0] if candidates else math.inf
        starts = [
            Start(
                seconds=candidate.prediction.step_seconds,
                grouping=candidate.grouping,
                assignment=candidate.assignment,
            )
            for candidate in candidates
        ]
        recomputed = [start for start in solved if any(start.assignment.recompute)]
        candidates += refine([*starts, *recomputed, *ideals], evaluator, least, host=self._host)
        first: dict[Grouping, Candidate] = {}
        for candidate in sorted(candidates, key=evaluator.rank):
            first.setdefault(candidate.grouping, candidate)
        ranked = list(first.values())
        return (ranked[0], ranked[1:]) if ranked else (None, [])

    def _best_of_groupings(self, solved: Sequence[Start]) -> list[Candidate]:
        rank = self._evaluator.rank
        first: dict[Grouping, Candidate] = {}
        for start in sorted(solved, key=lambda start: start.seconds)[:_MOST_PREDICTED]:
            if not self._few and len(first) == _MOST_OF_MANY:
                break
            candidate = self._evaluator.candidate(start.grouping, start.assignment)
            before = first.get(start.grouping)
            if candidate.fits and (before is None or rank(candidate) < rank(before)):
                first[start.grouping] = candidate
        # Groupings that differ only in groups without samples have the same plan.
        distinct: dict[tuple[ReplicaAssignment, ...], Candidate] = {}
        for candidate in sorted(first.values(), key=rank):
            distinct.setdefault(candidate.assignment.replicas, candidate)
        return list(distinct.values())

    def _recut(self, candidate: Candidate) -> Candidate:
        assignment = candidate.assignment
        layers, cluster = self._profile.model.layers, self._profile.cluster
        if assignment.owners != spread_owners(layers, assignment.replicas, cluster):
            return candidate
        ways = [
            recut(replica, assignment.recompute, self._profile) or [replica]
            for replica in assignment.replicas
        ]
        # The best cuts of each replica, then the second best of each, and so on.
        ranked_together = (
            tuple(some[min(rank, len(some) - 1)] for some in ways)
            for rank in range(min(_MOST_CUTS, max(map(len, ways))))
        )
        others = (
            dataclasses.replace(
                assignment, replicas=replicas, owners=spread_owners(layers, replicas, cluster)
            )
            for replicas in ranked_together
        )
        best = min(itertools.chain([assignment], others), key=self._evaluator.seconds)
        if best is assignment:
            return candidate
        return self._evaluator.candidate(candidate.grouping, best)

    def _host_updates_fast(self) -> bool:
        """Whether the host updates all variables faster than the devices do together."""
        profile = self._profile
        indices = range(len(profile.model.layers))
        host = sum(owner_update_seconds(index, HOST_OWNER, profile) for index in indices)
        types = [device.type for device in profile.cluster.devices]
        slowest = max(
            sum(layer.update_seconds for layer in profile.times[name]) for name in set(types)
        )
        return host < slowest / len(types)
