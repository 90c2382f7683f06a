"""The search for the best plan.

::

    groupings --> for each: cuts, micro-batches, shares, as if memory had no end
              --> in the order of that time: the same within memory, until no other can be better

Within memory, three things are tried, each only where the one before does not fit: owners as the
engine spreads them; owners by the room that devices have left; the host as an owner. Each of them
without recomputation and with it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from evener.plan.costing.assignment import HOST_OWNER, Assignment, ReplicaAssignment, holders_of
from evener.plan.costing.exchange import exchange_seconds
from evener.plan.costing.memory import entering_bytes
from evener.plan.costing.prediction import Prediction, predict, update_seconds
from evener.plan.search.filling import Vessel, fill
from evener.plan.search.group_costs import Exchange, GroupCosts, Shape
from evener.plan.search.groupings import (
    MOST_FOR_ALL,
    Group,
    Grouping,
    groupings_of,
    kind_of,
)
from evener.plan.search.owner_choice import default_owners, owners_that_fit
from evener.profile import CostProfile, Curve

_SLACK = 1.02
"""By how much the formula for pipelines may be above the timetable of their tasks."""

_AS_FAST = 1.0005

_ROUNDS = 3
"""Shares, cuts and exchanges depend on each other: so often each is found from the others."""

_Memory = Literal["ignored", "owners spread", "owners by room", "owners on the host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the search may choose.

    Args:
        num_micro_batches: The numbers of micro-batches that are tried.
        pipelines: Whether layers may be spread over devices.
        recompute: Whether activations may be computed again.
        host: Whether the host may own variables.
    """

    num_micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    pipelines: bool = True
    recompute: bool = True
    host: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that was considered.

    Args:
        grouping: The devices of each replica.
        assignment: What each computes and owns.
        prediction: What that costs.
        shortages: For each device that lacks memory the bytes that it lacks.
    """

    grouping: Grouping
    assignment: Assignment
    prediction: Prediction
    shortages: tuple[tuple[int, int], ...]

    @property
    def fits(self) -> bool:
        """Whether every device has the memory that it needs."""
        return not self.shortages


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search has found.

    Args:
        best: The fastest plan that fits; None if none does.
        considered: Others, the fastest first; of each grouping one at most.
    """

    best: Candidate | None
    considered: tuple[Candidate, ...]

    @property
    def assignment(self) -> Assignment:
        """Of the best plan; there must be one."""
        assert self.best is not None
        return self.best.assignment

    @property
    def prediction(self) -> Prediction:
        """Of the best plan; there must be one."""
        assert self.best is not None
        return self.best.prediction


def search_plan(
    profile: CostProfile, batch_size: int, choices: Choices | None = None
) -> SearchResult:
    """Return the fastest plan for a batch size that fits into the memory of every device.

    Args:
        profile: What layers and devices cost.
        batch_size: Samples of the global batch, at least 1.
        choices: What may be chosen; by default all.
    """
    choices = choices or Choices()
    search = _Search(profile, batch_size, choices)
    groupings = [
        grouping
        for grouping in groupings_of(profile.cluster, len(profile.model.layers))
        if choices.pipelines or all(len(group) == 1 for group in grouping)
    ]
    best: Candidate | None = None
    considered: list[Candidate] = []

    def is_hopeless(seconds: float) -> bool:
        return best is not None and seconds > best.prediction.step_seconds * _SLACK

    for grouping in sorted(groupings, key=search.least_seconds):
        if is_hopeless(search.least_seconds(grouping)):
            break
        solved = search.solve(grouping, search.plain, "ignored")
        if solved is None or is_hopeless(solved[0]):
            continue
        found = search.within_memory(grouping)
        considered.extend(found)
        for one in found:
            if one.fits and (best is None or _rank(one) < _rank(best)):
                best = one
    considered.sort(key=_rank)
    return SearchResult(best=best, considered=tuple(one for one in considered if one is not best))


def _rank(candidate: Candidate) -> tuple[float, int]:
    """Return what is less for a better plan: of equal times, fewer devices."""
    num_devices = sum(map(len, candidate.grouping))
    return candidate.prediction.step_seconds, num_devices


class _Search:
    """The costs that a search looks up again and again.

    Args:
        profile: As for `search_plan`.
        batch_size: As for `search_plan`.
        choices: As for `search_plan`.
    """

    def __init__(self, profile: CostProfile, batch_size: int, choices: Choices) -> None:
        self._profile = profile
        self._batch_size = batch_size
        self._choices = choices
        self._sample_seconds = functools.cache(self._least_sample_seconds)
        layers = profile.model.layers
        never = (False,) * len(layers)
        again = tuple(
            layer.activation_bytes > entering_bytes(profile.model, place)
            for place, layer in enumerate(layers)
        )
        self.plain = GroupCosts(profile, never)
        self._ways = [self.plain]
        if choices.recompute and any(again):
            self._ways.append(GroupCosts(profile, again))

    def least_seconds(self, grouping: Grouping) -> float:
        """Return a time that no plan on the devices of a grouping can be below."""
        devices = [device for group in grouping for device in group]
        types = [self._profile.cluster.devices[device].type for device in devices]
        return self._batch_size / sum(1 / self._sample_seconds(type_name) for type_name in types)

    def _least_sample_seconds(self, type_name: str) -> float:
        """Return the least time of a sample on a type of device, in batches of any size."""
        times = self._profile.times[type_name]
        total = Curve.total(curve for one in times for curve in (one.forward, one.backward))
        best = min(seconds / samples for samples, seconds in total.points)
        if len(total.points) > 1:
            (first, low), (last, high) = total.points[-2:]
            best = min(best, (high - low) / (last - first))
        return max(best, 1e-15)

    def within_memory(self, grouping: Grouping) -> list[Candidate]:
        """Return the best plans of a grouping: those that fit, else those that come nearest."""
        found: list[Candidate] = []
        for costs in self._ways:
            for memory in self._memory_ways():
                candidate = self._candidate(grouping, costs, memory)
                if candidate is not None:
                    found.append(candidate)
                    if candidate.fits:
                        break
            # Recomputation costs time: without need, there is nothing in it.
            if found and found[-1].fits and found[-1] is found[0]:
                break
        if not any(one.fits for one in found):
            unlimited = self._candidate(grouping, self.plain, "ignored")
            found = [one for one in [*found, unlimited] if one is not None][-1:]
        return found

    def _memory_ways(self) -> Iterator[_Memory]:
        yield "owners spread"
        yield "owners by room"
        if self._choices.host:
            yield "owners on the host"

    def _candidate(
        self, grouping: Grouping, costs: GroupCosts, memory: _Memory
    ) -> Candidate | None:
        solved = self.solve(grouping, costs, memory)
        if solved is None:
            return None
        assignment = solved[1]
        prediction = predict(assignment, self._profile)
        return Candidate(
            grouping=grouping,
            assignment=assignment,
            prediction=prediction,
            shortages=tuple(shortages(prediction, self._profile)),
        )

    def solve(
        self, grouping: Grouping, costs: GroupCosts, memory: _Memory
    ) -> tuple[float, Assignment] | None:
        """Return the time by the formula, and the assignment; None if nothing fits."""
        kinds = self._kinds(grouping)
        even = max(1, self._batch_size // len(grouping))
        guesses = {kind: even for kind in kinds}
        exchanges = {kind: Exchange() for kind in kinds}
        owned: dict[int, float] = {}
        best: tuple[float, Assignment] | None = None
        for _ in range(2 if memory == "ignored" else _ROUNDS):
            options = {
                kind: self._options(groups[0], costs, guesses[kind], len(grouping), memory)
                for kind, groups in kinds.items()
            }
            if not all(options.values()):
                return best
            replicas_of = {
                kind: _Kind(groups, options[kind], costs, exchanges[kind], memory, owned)
                for kind, groups in kinds.items()
            }
            filled = self._filled(list(replicas_of.values()))
            if filled is None:
                return best
            seconds, replicas = filled
            owners = self._owners(replicas, costs, memory)
            if owners is None:
                return best
            assignment = Assignment(
                replicas=tuple(replicas), owners=owners, recompute=costs.recompute
            )
            exchanges = self._exchanges(kinds, assignment)
            owned = self._owned(assignment) if memory == "owners spread" else {}
            if best is None or seconds < best[0] or owned:
                best = seconds, assignment
            by_first = {replica.spans[0].device: replica.samples for replica in replicas}
            guesses = {
                kind: max([by_first.get(group[0], 0) for group in groups] + [1])
                for kind, groups in kinds.items()
            }
        return best

    def _kinds(self, grouping: Grouping) -> dict[tuple[object, ...], list[Group]]:
        """Return groups that cost the same, together."""
        cluster = self._profile.cluster
        kinds: dict[tuple[object, ...], list[Group]] = {}
        for group in grouping:
            links = tuple(cluster.link(a, b) for a, b in itertools.pairwise(group))
            kind = (tuple(kind_of(device, cluster) for device in group), links)
            kinds.setdefault(kind, []).append(group)
        return kinds

    def _options(
        self, group: Group, costs: GroupCosts, samples: int, num_groups: int, memory: _Memory
    ) -> list[Shape]:
        """Return the shapes in which a replica may be computed."""
        own_part = {"ignored": None, "owners spread": 1 / num_groups}.get(memory, 0.0)
        options: list[Shape] = []
        for count in self._choices.num_micro_batches:
            if count > max(1, samples):
                break
            # Deep pipelines are never full with fewer micro-batches than half their stages.
            if len(group) > 2 * MOST_FOR_ALL and 2 * count < len(group):
                continue
            cuts = costs.cut(group, count, samples / count, own_part)
            if cuts is not None:
                in_flight = min(len(group), count)
                options.append(Shape(cuts=cuts, num_micro_batches=count, in_flight=in_flight))
        return options

    def _filled(self, kinds: Sequence[_Kind]) -> tuple[float, list[ReplicaAssignment]] | None:
        limits = {id(kind): kind.limits(self._batch_size) for kind in kinds}
        vessels = [
            Vessel(
                seconds=kind.timed(limits[id(kind)]),
                compute_seconds=kind.computing(limits[id(kind)]),
                count=len(kind.groups),
            )
            for kind in kinds
        ]
        counts = fill(vessels, self._batch_size)
        if counts is None:
            return None
        replicas: list[ReplicaAssignment] = []
        longest = 0.0
        for kind, vessel, of_kind in zip(kinds, vessels, counts, strict=True):
            shapes = {n: kind.best(n, limits[id(kind)]) for n in set(of_kind) if n}
            longest = max(longest, *map(vessel.seconds, of_kind))
            replicas += [
                shapes[samples].assigned(group, samples)
                for group, samples in zip(kind.groups, of_kind, strict=True)
                if samples
            ]
        return longest, replicas

    def _owners(
        self, replicas: Sequence[ReplicaAssignment], costs: GroupCosts, memory: _Memory
    ) -> tuple[int, ...] | None:
        model, cluster = self._profile.model, self._profile.cluster
        if memory in ("ignored", "owners spread"):
            return default_owners(model, cluster, replicas)
        room: dict[int, float] = {}
        for replica in replicas:
            group = tuple(span.device for span in replica.spans)
            shape = Shape(
                cuts=(0, *(span.end for span in replica.spans)),
                num_micro_batches=replica.num_micro_batches,
                in_flight=replica.in_flight,
            )
            left = costs.room(group, shape, replica.samples, {})
            room |= {device: left.get(device, float("inf")) for device in group}
        allow_host = memory == "owners on the host"
        return owners_that_fit(model, replicas, room, allow_host=allow_host)

    def _owned(self, assignment: Assignment) -> dict[int, float]:
        """Return what devices need for what they own, beyond fetching all weights."""
        layers = self._profile.model.layers
        holders = holders_of(assignment.replicas, len(layers))
        owned: dict[int, float] = {}
        for layer, devices, owner in zip(layers, holders, assignment.owners, strict=True):
            more = layer.owned_bytes + layer.weight_bytes * (len(devices) - 2)
            owned[owner] = owned.get(owner, 0.0) + more
        return owned

    def _exchanges(
        self, kinds: dict[tuple[object, ...], list[Group]], assignment: Assignment
    ) -> dict[tuple[object, ...], Exchange]:
        arrival = exchange_seconds(assignment, self._profile.model, self._profile.cluster)
        update = update_seconds(assignment, self._profile)
        return {
            kind: Exchange(
                arrival_seconds=max(arrival.get(d, 0.0) for group in groups for d in group),
                update_seconds=max(
                    update.get(d, 0.0) for group in groups for d in (*group, HOST_OWNER)
                ),
            )
            for kind, groups in kinds.items()
        }


class _Kind:
    """Groups that cost the same, and the shapes in which they may compute.

    Args:
        groups: The groups.
        options: The shapes.
        costs: Of groups.
        exchange: Of their weights.
        memory: Whether memory limits them.
        owned: See `GroupCosts.most_samples`.
    """

    def __init__(
        self,
        groups: list[Group],
        options: list[Shape],
        costs: GroupCosts,
        exchange: Exchange,
        memory: _Memory,
        owned: dict[int, float],
    ) -> None:
        self.groups = groups
        self._options = options
        self._costs = costs
        self._exchange = exchange
        self._memory = memory
        self._owned = owned

    def limits(self, batch_size: int) -> list[int]:
        """Return for each shape the most samples that fit into memory."""
        if self._memory == "ignored":
            return [batch_size] * len(self._options)
        fullest = max(self.groups, key=lambda group: max(self._owned.get(d, 0.0) for d in group))
        return [
            self._costs.most_samples(fullest, shape, batch_size, self._owned)
            for shape in self._options
        ]

    def timed(self, limits: list[int]) -> Callable[[int], float]:
        """Return the time by samples, of the best shape that fits."""
        group, exchange = self.groups[0], self._exchange
        return self._least(limits, lambda s, n: self._costs.seconds(group, s, n, exchange))

    def computing(self, limits: list[int]) -> Callable[[int], float]:
        """Return the time by samples without that of weights, of the best shape that fits."""
        group = self.groups[0]
        return self._least(limits, lambda s, n: self._costs.compute_seconds(group, s, n))

    def _least(
        self, limits: list[int], seconds: Callable[[Shape, int], float]
    ) -> Callable[[int], float]:
        @functools.cache
        def least(samples: int) -> float:
            if samples == 0:
                return 0.0
            fitting = (
                shape
                for shape, limit in zip(self._options, limits, strict=True)
                if samples <= limit
            )
            return min((seconds(shape, samples) for shape in fitting), default=math.inf)

        return least

    def best(self, samples: int, limits: list[int]) -> Shape:
        """Return the shape that computes some samples in the least time."""
        fitting = [s for s, limit in zip(self._options, limits, strict=True) if samples <= limit]
        seconds = [
            self._costs.seconds(self.groups[0], shape, samples, self._exchange) for shape in fitting
        ]
        # Options are by rising numbers of micro-batches: of two that are as fast, fewer are better.
        enough = min(seconds) * _AS_FAST
        return next(s for s, took in zip(fitting, seconds, strict=True) if took <= enough)


def shortages(prediction: Prediction, profile: CostProfile) -> Iterator[tuple[int, int]]:
    """Yield each device that lacks memory for a plan, with the bytes that it lacks."""
    for device, needed in prediction.memory.items():
        if device == HOST_OWNER:
            sizes = [machine.host_memory_bytes for machine in profile.cluster.machines]
            memory = None if None in sizes else min(size for size in sizes if size is not None)
        else:
            memory = profile.cluster.devices[device].memory_bytes
        if memory is not None and needed.total > memory:
            yield device, needed.total - memory
