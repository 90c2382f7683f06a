"""The search: groupings of devices are solved, the best are refined, the fastest that fits wins.

::

    groupings --> for each: cuts, micro-batches, shares, with unlimited memory     `Solver`
              --> in the order of that time: the same within memory, until no other can be better

If memory is short, several rules for owners are tried, each without recomputation and with it.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evener.plan.profile import CostProfile, Curve, LayerCosts, ModelCosts
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    by_machine,
    holders_of,
    spans_of,
    spread_owners,
)
from evener.planner.candidates import MOST_GAIN, Candidate, Choices, PlanEvaluator, Start, refine
from evener.planner.groups import (
    MOST_FOR_ALL,
    Group,
    GroupCosts,
    Grouping,
    GroupKind,
    first_of_each,
    groupings_of,
    is_over_machines,
    kind_of,
)
from evener.planner.memory import gradients_wait, predict_memory, shortages
from evener.planner.prediction import (
    Prediction,
    owner_update_seconds,
    recomputed_layers,
    update_seconds,
)
from evener.planner.step_time import WeightSeconds, exchange_seconds

_SLACK = 1.25
"""Factor by which the formula for pipelines may overestimate the timeline."""

_SLACK_OF_MANY = 1.02
"""The same for clusters of which only some groupings are tried."""

_MOST_PREDICTED = 100
_MOST_OF_MANY = 6
_MOST_POLISHED = 6
_MOST_LACKING = 6

_NO_SLOWER = 1.0005
"""Factor within which a plan that fits counts as fast as one with unlimited memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
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
        if self._host and not near:
            # Whether the host updates all variables faster than the devices do together.
            indices = range(len(profile.model.layers))
            host = sum(owner_update_seconds(index, HOST_OWNER, profile) for index in indices)
            types = [device.type for device in profile.cluster.devices]
            slowest = max(
                sum(layer.update_seconds for layer in profile.times[name]) for name in set(types)
            )
            near = host < slowest / len(types)
        self._host_may_be_fast = self._host and near
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
            # With unlimited memory.
            ways = [UNLIMITED, UNLIMITED_HOST] if self._host_may_be_fast else [UNLIMITED]
            solutions = (self._solvers[0].solve(grouping, rules) for rules in ways)
            ideal = min(filter(None, solutions), key=lambda start: start.seconds, default=None)
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
            self._evaluator.candidate(start.assignment, start.grouping)
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

    def _within_memory(self, ideal: Start) -> Iterator[Start]:
        """Yield plans of a grouping that fit, until one is as fast as with unlimited memory."""
        grouping, cluster = ideal.grouping, self._profile.cluster
        ways = [OwnerRules(rule="spread")]
        if not is_over_machines(grouping, cluster):
            ways.append(OwnerRules(rule="by room"))
            kinds = {kind_of(device, cluster) for group in grouping for device in group}
            if 1 < len(kinds) and sum(map(len, grouping)) <= MOST_FOR_ALL:
                ways += [OwnerRules(rule="by room", reserved=kind) for kind in sorted(kinds)]
            if self._host:
                ways.append(OwnerRules(rule="by room", host=True))
                ways.append(OwnerRules(rule="host", host=True))
        for solver in self._solvers:
            for rules in ways:
                start = solver.solve(grouping, rules)
                if start is None:
                    continue
                yield start
                if start.seconds <= ideal.seconds * _NO_SLOWER:
                    return
                if not self._few:
                    break

    def _ranked(
        self, solved: Sequence[Start], ideals: Sequence[Start]
    ) -> tuple[Candidate | None, list[Candidate]]:
        """Return the best plan by its timeline, and the best plans of other groupings."""
        evaluator = self._evaluator
        # The best plan of each grouping.
        first: dict[Grouping, Candidate] = {}
        for start in sorted(solved, key=lambda start: start.seconds)[:_MOST_PREDICTED]:
            if not self._few and len(first) == _MOST_OF_MANY:
                break
            candidate = evaluator.candidate(start.assignment, start.grouping)
            before = first.get(start.grouping)
            if candidate.fits and (
                before is None or evaluator.rank(candidate) < evaluator.rank(before)
            ):
                first[start.grouping] = candidate
        # Groupings that differ only in groups without samples have the same plan.
        ranked = sorted(first.values(), key=evaluator.rank)
        candidates = [*first_of_each(ranked, lambda candidate: candidate.assignment.replicas)]
        if self._few:
            for index, candidate in enumerate(candidates[:_MOST_POLISHED]):
                grouping = candidate.grouping
                better = evaluator.polished(grouping, candidate.assignment, host=self._host)
                candidates[index] = evaluator.candidate(better, grouping)
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
        ranked = sorted(candidates, key=evaluator.rank)
        ranked = [*first_of_each(ranked, lambda candidate: candidate.grouping)]
        return (ranked[0], ranked[1:]) if ranked else (None, [])


_MOST_ROUNDS = 3

_ROUNDING = 1 + 1e-9
"""Relative tolerance of times: rounding may make a sum of seconds fall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRules:
    # ``"unlimited"``: as the engine does, with unlimited memory. ``"spread"``: as the engine does.
    # ``"by room"``: by the memory that samples leave free. ``"host"``: the host owns everything.
    rule: Literal["unlimited", "spread", "by room", "host"]
    # Kind of device that reserves memory for all variables; None to place samples first.
    reserved: tuple[str, int] | None = None
    host: bool = False  # Whether the host owns layers that fit on no device.


UNLIMITED = OwnerRules(rule="unlimited")
UNLIMITED_HOST = OwnerRules(rule="unlimited", host=True)


class Solver:
    """Finds cuts, shares and owners of a grouping by iteration: each depends on the others."""

    def __init__(
        self,
        costs: GroupCosts,
        batch_size: int,
        num_micro_batches: Sequence[int],
        *,
        as_fast: float = 1.0005,
    ) -> None:
        self._costs = costs
        self._model = costs.profile.model
        self._cluster = costs.profile.cluster
        self._batch_size = batch_size
        self._num_micro_batches = num_micro_batches
        self._as_fast = as_fast

    def solve(self, grouping: Grouping, rules: OwnerRules) -> Start | None:
        # Groups by kind: those of a kind have the same costs.
        kinds: dict[object, list[Group]] = {}
        for group in grouping:
            links = tuple(self._cluster.link(a, b) for a, b in itertools.pairwise(group))
            key = (tuple(kind_of(device, self._cluster) for device in group), links)
            kinds.setdefault(key, []).append(group)
        samples = dict.fromkeys(kinds, max(1, self._batch_size // len(grouping)))
        exchanges = dict.fromkeys(kinds, WeightSeconds())
        owned: dict[int, float] = {}
        if rules.reserved is not None:
            # Bytes that devices reserve for variables before samples are assigned.
            devices = [device for group in grouping for device in group]
            of_kind = [d for d in devices if kind_of(d, self._cluster) == rules.reserved]
            needed = self._model.owned_bytes + self._model.weight_bytes * (len(grouping) - 2)
            owned = dict.fromkeys(of_kind, max(0, needed) / len(of_kind))
        key_of = {group[0]: key for key, groups in kinds.items() for group in groups}
        best: Start | None = None
        for _ in range(2 if rules.rule == "unlimited" else _MOST_ROUNDS):
            replicas = self._fill(
                [
                    GroupKind(
                        groups=groups,
                        options=self._options(groups[0], samples[key], len(grouping), rules),
                        costs=self._costs,
                        exchange=exchanges[key],
                        limited=rules.rule != "unlimited",
                        owned=owned,
                        is_alone=len(grouping) == 1,
                    )
                    for key, groups in kinds.items()
                ]
            )
            owners = None if replicas is None else self._owners(replicas, rules)
            if replicas is None or owners is None:
                return best
            assignment = Assignment(
                replicas=tuple(replicas), owners=owners, recompute=self._costs.recompute
            )
            if rules.rule == "spread":
                owned = self._owned_bytes(assignment)
            travel = exchange_seconds(assignment, self._model, self._cluster)
            update = update_seconds(assignment, self._costs.profile)
            exchanges = {
                key: WeightSeconds.of(itertools.chain(*groups), travel, update)
                for key, groups in kinds.items()
            }
            # The slowest replica, by the formula; those of a kind with equal samples are alike.
            keyed = [(key_of[replica.spans[0].device], replica) for replica in replicas]
            different = first_of_each(keyed, lambda pair: (pair[0], pair[1].samples))
            seconds = max(
                self._costs.seconds(replica, exchanges[key]) for key, replica in different
            )
            if (best is None or seconds < best.seconds) and self._fits(assignment, rules):
                best = Start(seconds=seconds, grouping=grouping, assignment=assignment)
            # The most samples of a replica of each kind.
            samples = dict.fromkeys(kinds, 1)
            for key, replica in keyed:
                samples[key] = max(samples[key], replica.samples)
        return best

    def _options(
        self, group: Group, samples: int, num_groups: int, rules: OwnerRules
    ) -> list[ReplicaAssignment]:
        own_part = {"unlimited": None, "spread": 1 / num_groups}.get(rules.rule, 0.0)
        options: list[ReplicaAssignment] = []
        for count in self._num_micro_batches:
            # Include one number above: a replica may get more samples than in the last round.
            if count >= 2 * samples:
                break
            # Skip counts that cannot fill a deep pipeline: fewer than half its stages.
            if len(group) > 2 * MOST_FOR_ALL and 2 * count < len(group):
                continue
            cuts = self._costs.cut(group, count, max(1.0, samples / count), own_part)
            if cuts is not None:
                option = ReplicaAssignment(samples=count, spans=spans_of(group, cuts))
                options.append(option.in_micro_batches(count))
        return options

    def _fill(self, kinds: Sequence[GroupKind]) -> list[ReplicaAssignment] | None:
        limits = [kind.limits(self._batch_size) for kind in kinds]
        classes = [
            ReplicaClass(
                seconds=kind.least_seconds(limit, exchange=True),
                compute_seconds=kind.least_seconds(limit, exchange=False),
                count=len(kind.groups),
            )
            for kind, limit in zip(kinds, limits, strict=True)
        ]
        counts = fill(classes, self._batch_size)
        if counts is None:
            return None
        replicas: list[ReplicaAssignment] = []
        for kind, limit, of_kind in zip(kinds, limits, counts, strict=True):
            best = {n: kind.best(n, limit, self._as_fast) for n in set(of_kind) if n}
            replicas += [
                best[samples].moved_to(group)
                for group, samples in zip(kind.groups, of_kind, strict=True)
                if samples
            ]
        return replicas

    def _owners(
        self, replicas: Sequence[ReplicaAssignment], rules: OwnerRules
    ) -> tuple[int, ...] | None:
        if rules.rule == "host" or rules == UNLIMITED_HOST:
            return (HOST_OWNER,) * len(self._model.layers)
        if rules.rule != "by room":
            return spread_owners(self._model.layers, replicas, self._cluster)
        room: dict[int, float] = {}
        for replica in replicas:
            left = self._costs.room(replica, {}, is_alone=len(replicas) == 1)
            room |= {device: left.get(device, math.inf) for device in replica.devices}
        return owners_that_fit(
            self._model,
            replicas,
            room,
            allow_host=rules.host,
            sums_wait=gradients_wait(self._model, replicas, self._costs.recompute),
        )

    def _fits(self, assignment: Assignment, rules: OwnerRules) -> bool:
        """Whether every device has enough memory; the owners may have changed since the shares."""
        if rules.rule == "unlimited":
            return True
        live = [replica.most_alive for replica in assignment.replicas]
        seconds = [self._costs.compute_seconds(replica) for replica in assignment.replicas]
        needs = predict_memory(assignment, self._model, self._cluster, live, seconds)
        return not any(shortages(needs, self._cluster))

    def _owned_bytes(self, assignment: Assignment) -> dict[int, float]:
        layers = self._model.layers
        holders = holders_of(assignment.replicas, len(layers))
        waits = gradients_wait(self._model, assignment.replicas, assignment.recompute)
        owned: dict[int, float] = defaultdict(float)
        shared: dict[tuple[int, ...], list[LayerCosts]] = defaultdict(list)
        for layer, devices, owner in zip(layers, holders, assignment.owners, strict=True):
            if owner == EACH_MACHINE:
                shared[devices].append(layer)
            else:
                owned[owner] += owning_bytes(layer, len(devices), sums_wait=waits)
        for devices, some in shared.items():
            variables = sum(layer.owned_bytes - layer.weight_bytes for layer in some)
            gradients = sum(layer.gradient_bytes for layer in some)
            for here in by_machine(devices, self._cluster).values():
                num_waiting = len(here) - 1 if waits else len(here)
                for device in here:
                    owned[device] += (variables + gradients * num_waiting) / len(here)
        return dict(owned)


def owning_bytes(layer: LayerCosts, num_holders: int, *, sums_wait: bool) -> int:
    """Return the bytes that owning a layer needs on a device, beyond fetching its weights.

    An owner holds a layer's weights and optimizer state, and the partial gradients that arrive for
    them. With ``sums_wait`` the gradients of all other devices may be on the owner while it
    computes; otherwise its own gradients wait for theirs.
    """
    num_others = num_holders - 1
    num_waiting = num_others if sums_wait else min(1, num_others)
    return layer.owned_bytes - layer.weight_bytes + layer.gradient_bytes * num_waiting


def owners_that_fit(
    model: ModelCosts,
    replicas: Sequence[ReplicaAssignment],
    room: Mapping[int, float],
    *,
    allow_host: bool,
    sums_wait: bool = True,
) -> tuple[int, ...] | None:
    """Return owners: for each layer the device with the most ``room``, else the host if allowed."""
    left = dict(room)
    owners: dict[int, int] = {}
    holders = holders_of(replicas, len(model.layers))
    for index in sorted(range(len(model.layers)), key=lambda k: -model.layers[k].owned_bytes):
        devices = holders[index]
        needed = owning_bytes(model.layers[index], len(devices), sums_wait=sums_wait)
        device = max(devices, key=lambda device: left[device])
        if needed <= left[device] or needed <= 0:
            left[device] -= needed
            owners[index] = device
        elif allow_host:
            owners[index] = HOST_OWNER
        else:
            return None
    return tuple(owners[index] for index in range(len(model.layers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaClass:
    seconds: Callable[[int], float]
    compute_seconds: Callable[[int], float]
    count: int = 1


def fill(classes: Sequence[ReplicaClass], num_samples: int) -> list[list[int]] | None:
    """Return the samples of every replica that minimize the time of the slowest one.

    Water-filling: bisection finds the least time T in which the replicas together compute the
    batch, each as many samples as it can in T. For each class the samples of its replicas are
    returned, which may be 0; None if the batch does not fit into memory.

    >>> fast, slow = (lambda n: 1.0 * n), (lambda n: 3.0 * n)
    >>> fill([ReplicaClass(seconds=f, compute_seconds=f) for f in (fast, slow)], 8)
    [[6], [2]]
    """
    counts = [replica_class.count for replica_class in classes]
    seconds = [replica_class.seconds for replica_class in classes]
    limits = [_most_samples(of_class, None, 0, num_samples) for of_class in seconds]
    if sum(limit * count for limit, count in zip(limits, counts, strict=True)) < num_samples:
        return None
    limits = _level(seconds, counts, limits, num_samples)
    # If the exchange of weights dominates, many assignments are equally fast: the time of
    # computation decides.
    computing = [replica_class.compute_seconds for replica_class in classes]
    limits = _level(computing, counts, limits, num_samples)
    filled = [[limit] * count for limit, count in zip(limits, counts, strict=True)]
    # Surplus samples are taken back, each from the replica that takes longest.
    heap = [
        (-computing[kind](count), kind, number)
        for kind, of_kind in enumerate(filled)
        for number, count in enumerate(of_kind)
        if count
    ]
    heapq.heapify(heap)
    for _ in range(sum(map(sum, filled)) - num_samples):
        _, kind, number = heap[0]
        filled[kind][number] -= 1
        left = filled[kind][number]
        if left:
            heapq.heapreplace(heap, (-computing[kind](left), kind, number))
        else:
            heapq.heappop(heap)
    return filled


def _level(
    seconds: Sequence[Callable[[int], float]],
    counts: Sequence[int],
    limits: Sequence[int],
    num_samples: int,
) -> list[int]:
    low, too_few = 0.0, [0] * len(limits)
    high, enough = max(f(limit) for f, limit in zip(seconds, limits, strict=True)), list(limits)
    for _ in range(60):
        middle = (low + high) / 2
        room = [
            _most_samples(f, middle, least, most)
            for f, least, most in zip(seconds, too_few, enough, strict=True)
        ]
        if sum(n * count for n, count in zip(room, counts, strict=True)) < num_samples:
            low, too_few = middle, room
        else:
            high, enough = middle, room
        # A difference of one sample in one class cannot be bisected further.
        if high - low <= 1e-9 * high or sum(enough) - sum(too_few) == 1:
            break
    return enough


def _most_samples(
    seconds: Callable[[int], float], time: float | None, least: int, most: int
) -> int:
    """Return the most samples from ``least`` to ``most`` in a time; None for any finite time."""
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        took = seconds(middle)
        if took < math.inf if time is None else took <= time * _ROUNDING:
            low = middle
        else:
            high = middle - 1
    return low
