"""The fastest shares and owners for one grouping of the devices."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evener.plan.profile import Cluster, LayerCosts, ModelCosts
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    by_machine,
    holders_of,
    spread_owners,
)
from evener.planner.assignment import ReplicaAssignment as Replicas
from evener.planner.groups import (
    MOST_FOR_ALL,
    Group,
    GroupCosts,
    Grouping,
    GroupKind,
    Shape,
    is_over_machines,
    kind_of,
)
from evener.planner.memory import gradients_wait, predict_memory, shortages
from evener.planner.prediction import update_seconds
from evener.planner.step_time import WeightSeconds, exchange_seconds

# Water-filling assignment of samples to replicas.
#
# The step time is that of the slowest replica. Bisection finds the least time T in which the
# replicas
# together compute the batch, each as many samples as it can in T.

_ROUNDING = 1 + 1e-9
"""Relative tolerance of times: rounding may make a sum of seconds fall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaClass:
    """Class of replicas with the same costs."""

    # Function from samples to seconds, never falling; infinite if the samples do not fit into
    # memory
    seconds: Callable[[int], float]
    # Function from samples to seconds of computation only, which decides between numbers of samples
    # with the same `seconds`
    compute_seconds: Callable[[int], float]
    count: int = 1  # Number of replicas, at least 1


def fill(classes: Sequence[ReplicaClass], num_samples: int) -> list[list[int]] | None:
    """Return the samples of every replica that minimize the time of the slowest one."""
    counts = [replica_class.count for replica_class in classes]
    seconds = [replica_class.seconds for replica_class in classes]
    limits = [_most_samples(class_seconds, None, 0, num_samples) for class_seconds in seconds]
    if sum(limit * count for limit, count in zip(limits, counts, strict=True)) < num_samples:
        return None
    limits = _level(seconds, counts, limits, num_samples)
    # If the exchange of weights dominates, many assignments are equally fast: the time of
    # computation decides.
    computing = [replica_class.compute_seconds for replica_class in classes]
    limits = _level(computing, counts, limits, num_samples)
    filled = [[limit] * count for limit, count in zip(limits, counts, strict=True)]
    _take_back(computing, filled, sum(map(sum, filled)) - num_samples)
    return filled


_Seconds = Callable[[int], float]


def _level(
    seconds: Sequence[_Seconds], counts: Sequence[int], limits: Sequence[int], num_samples: int
) -> list[int]:
    """Return the samples per replica of each class in the least time that suffices for all."""
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


def _most_samples(seconds: _Seconds, time: float | None, least: int, most: int) -> int:
    """Return the most samples that a replica computes in a given time."""
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        took = seconds(middle)
        if took < math.inf if time is None else took <= time * _ROUNDING:
            low = middle
        else:
            high = middle - 1
    return low


def _take_back(seconds: Sequence[_Seconds], filled: list[list[int]], surplus: int) -> None:
    """Remove surplus samples, each from the replica that takes longest."""
    heap = [
        (-class_seconds(count), kind, number)
        for kind, (class_seconds, of_kind) in enumerate(zip(seconds, filled, strict=True))
        for number, count in enumerate(of_kind)
        if count
    ]
    heapq.heapify(heap)
    for _ in range(surplus):
        _, kind, number = heap[0]
        filled[kind][number] -= 1
        left = filled[kind][number]
        if left:
            heapq.heapreplace(heap, (-seconds[kind](left), kind, number))
        else:
            heapq.heappop(heap)


# Choice of owners if memory is short.
#
# An owner holds a layer's weights and optimizer state, and the partial gradients that arrive for
# them; it does not fetch the weights. If every device has enough memory, owners are spread as the
# engine does. Otherwise each layer goes to the device with the most free memory, and layers that
# fit
# on no device go to the host.


def owning_bytes(layer: LayerCosts, num_holders: int, *, sums_wait: bool) -> int:
    """Return the bytes that owning a layer needs on a device, beyond fetching its weights."""
    num_others = num_holders - 1
    num_waiting = num_others if sums_wait else min(1, num_others)
    return layer.owned_bytes - layer.weight_bytes + layer.gradient_bytes * num_waiting


def owners_that_fit(
    model: ModelCosts,
    replicas: Sequence[Replicas],
    room: Mapping[int, float],
    *,
    allow_host: bool,
    sums_wait: bool = True,
) -> tuple[int, ...] | None:
    """Return owners that fit into the free memory of the devices."""
    left = dict(room)
    owners: dict[int, int] = {}
    holders = holders_of(replicas, len(model.layers))
    for layer_index in sorted(range(len(model.layers)), key=lambda k: -model.layers[k].owned_bytes):
        layer, devices = model.layers[layer_index], holders[layer_index]
        needed = owning_bytes(layer, len(devices), sums_wait=sums_wait)
        device = max(devices, key=lambda index: left[index])
        if needed <= left[device] or needed <= 0:
            left[device] -= needed
            owners[layer_index] = device
        elif allow_host:
            owners[layer_index] = HOST_OWNER
        else:
            return None
    return tuple(owners[layer_index] for layer_index in range(len(model.layers)))


# Rules for the choice of owners that the search tries.


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerWay:
    """Rule for the choice of owners."""

    # Name of the rule
    rule: Literal["unlimited", "spread", "by room", "host"]
    # Kind of device that reserves memory for all variables; None to place samples first
    reserved: tuple[str, int] | None = None
    host: bool = False  # Whether the host owns layers that fit on no device


UNLIMITED = OwnerWay(rule="unlimited")


UNLIMITED_HOST = OwnerWay(rule="unlimited", host=True)


def owner_ways(grouping: Grouping, cluster: Cluster, *, host: bool) -> Iterator[OwnerWay]:
    """Yield the owner rules to try with memory limits."""
    yield OwnerWay(rule="spread")
    if is_over_machines(grouping, cluster):
        return
    yield OwnerWay(rule="by room")
    kinds = {kind_of(device, cluster) for group in grouping for device in group}
    if 1 < len(kinds) and sum(map(len, grouping)) <= MOST_FOR_ALL:
        for kind in sorted(kinds):
            yield OwnerWay(rule="by room", reserved=kind)
    if host:
        yield OwnerWay(rule="by room", host=True)
        yield OwnerWay(rule="host", host=True)


# Best assignment of one grouping: cuts, micro-batches, shares and owners.
#
# Shares depend on the cuts, cuts on the samples of a micro-batch, the traffic of weights on the
# owners, and owners on the memory that samples leave free. The solver iterates over them.

_MOST_ROUNDS = 3


_KindKey = tuple[object, ...]


class Solver:
    """Solver that finds the assignment of a grouping."""

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

    def solve(self, grouping: Grouping, way: OwnerWay) -> tuple[float, Assignment] | None:
        """Return the seconds by the pipeline formula, and the assignment; None if none fits."""
        kinds = self._kinds(grouping)
        samples = dict.fromkeys(kinds, max(1, self._batch_size // len(grouping)))
        exchanges = dict.fromkeys(kinds, WeightSeconds())
        owned = self._reserved(grouping, way)
        best: tuple[float, Assignment] | None = None
        for _ in range(2 if way.rule == "unlimited" else _MOST_ROUNDS):
            found = [
                GroupKind(
                    groups=groups,
                    options=self._options(groups[0], samples[key], len(grouping), way),
                    costs=self._costs,
                    exchange=exchanges[key],
                    limited=way.rule != "unlimited",
                    owned=owned,
                    is_alone=len(grouping) == 1,
                )
                for key, groups in kinds.items()
            ]
            replicas = self._filled(found)
            owners = None if replicas is None else self._owners(replicas, way)
            if replicas is None or owners is None:
                return best
            assignment = Assignment(
                replicas=tuple(replicas), owners=owners, recompute=self._costs.recompute
            )
            if way.rule == "spread":
                owned = self._owned(assignment)
            exchanges = self._exchanges(kinds, assignment)
            seconds = self._seconds(kinds, replicas, exchanges)
            if (best is None or seconds < best[0]) and self._fits(assignment, way):
                best = seconds, assignment
            samples = _samples_of(kinds, replicas)
        return best

    def _kinds(self, grouping: Grouping) -> dict[_KindKey, list[Group]]:
        """Return the groups by kind: those of a kind have the same costs."""
        kinds: dict[_KindKey, list[Group]] = {}
        for group in grouping:
            links = tuple(self._cluster.link(a, b) for a, b in itertools.pairwise(group))
            key = (tuple(kind_of(device, self._cluster) for device in group), links)
            kinds.setdefault(key, []).append(group)
        return kinds

    def _options(self, group: Group, samples: int, num_groups: int, way: OwnerWay) -> list[Shape]:
        """Return the shapes that a replica may have."""
        own_part = {"unlimited": None, "spread": 1 / num_groups}.get(way.rule, 0.0)
        options: list[Shape] = []
        for count in self._num_micro_batches:
            # Include one number above: a replica may get more samples than in the last round.
            if count >= 2 * samples:
                break
            # Skip counts that cannot fill a deep pipeline: fewer than half its stages.
            if len(group) > 2 * MOST_FOR_ALL and 2 * count < len(group):
                continue
            cuts = self._costs.cut(group, count, max(1.0, samples / count), own_part)
            if cuts is not None:
                in_flight = min(len(group), count)
                options.append(Shape(cuts=cuts, num_micro_batches=count, in_flight=in_flight))
        return options

    def _seconds(
        self,
        kinds: Mapping[_KindKey, list[Group]],
        replicas: Sequence[ReplicaAssignment],
        exchanges: Mapping[_KindKey, WeightSeconds],
    ) -> float:
        """Return the seconds of the slowest replica, by the formula."""
        key_of = {group[0]: (key, group) for key, groups in kinds.items() for group in groups}
        different: dict[object, float] = {}
        for replica in replicas:
            key, group = key_of[replica.spans[0].device]
            shape = Shape.of(replica)
            if (key, shape, replica.samples) not in different:
                different[key, shape, replica.samples] = self._costs.seconds(
                    group, shape, replica.samples, exchanges[key]
                )
        return max(different.values())

    def _fits(self, assignment: Assignment, way: OwnerWay) -> bool:
        """Whether every device has enough memory; the owners may have changed since the shares."""
        if way.rule == "unlimited":
            return True
        live = [
            [
                max(1, min(replica.num_micro_batches, replica.in_flight - k))
                for k in range(len(replica.spans))
            ]
            for replica in assignment.replicas
        ]
        seconds = [
            self._costs.compute_seconds(replica.devices, Shape.of(replica), replica.samples)
            for replica in assignment.replicas
        ]
        needs = predict_memory(assignment, self._model, self._cluster, live, seconds)
        return not any(shortages(needs, self._cluster))

    def _filled(self, kinds: Sequence[GroupKind]) -> list[ReplicaAssignment] | None:
        limits = [kind.limits(self._batch_size) for kind in kinds]
        classes = [
            ReplicaClass(
                seconds=kind.timed(limit),
                compute_seconds=kind.computing(limit),
                count=len(kind.groups),
            )
            for kind, limit in zip(kinds, limits, strict=True)
        ]
        counts = fill(classes, self._batch_size)
        if counts is None:
            return None
        replicas: list[ReplicaAssignment] = []
        for kind, limit, of_kind in zip(kinds, limits, counts, strict=True):
            shapes = {n: kind.best(n, limit, self._as_fast) for n in set(of_kind) if n}
            replicas += [
                shapes[samples].assigned(group, samples)
                for group, samples in zip(kind.groups, of_kind, strict=True)
                if samples
            ]
        return replicas

    def _owners(
        self, replicas: Sequence[ReplicaAssignment], way: OwnerWay
    ) -> tuple[int, ...] | None:
        if way.rule == "host" or way == UNLIMITED_HOST:
            return (HOST_OWNER,) * len(self._model.layers)
        if way.rule != "by room":
            return spread_owners(self._model.layers, replicas, self._cluster)
        room: dict[int, float] = {}
        for replica in replicas:
            group = replica.devices
            left = self._costs.room(
                group, Shape.of(replica), replica.samples, {}, is_alone=len(replicas) == 1
            )
            room |= {device: left.get(device, math.inf) for device in group}
        return owners_that_fit(
            self._model,
            replicas,
            room,
            allow_host=way.host,
            sums_wait=gradients_wait(self._model, replicas, self._costs.recompute),
        )

    def _reserved(self, grouping: Grouping, way: OwnerWay) -> dict[int, float]:
        """Return the bytes that devices reserve for variables before samples are assigned."""
        if way.reserved is None:
            return {}
        of_kind = [
            device
            for group in grouping
            for device in group
            if kind_of(device, self._cluster) == way.reserved
        ]
        model = self._model
        needed = model.owned_bytes + model.weight_bytes * (len(grouping) - 2)
        return dict.fromkeys(of_kind, max(0, needed) / len(of_kind))

    def _owned(self, assignment: Assignment) -> dict[int, float]:
        """Return the bytes that devices need for owned layers, beyond fetching all weights."""
        layers = self._model.layers
        holders = holders_of(assignment.replicas, len(layers))
        waits = gradients_wait(self._model, assignment.replicas, assignment.recompute)
        owned: dict[int, float] = {}
        shared: dict[tuple[int, ...], tuple[int, int]] = {}
        for layer, devices, owner in zip(layers, holders, assignment.owners, strict=True):
            if owner == EACH_MACHINE:
                variables, gradients = shared.get(devices, (0, 0))
                shared[devices] = (
                    variables + layer.owned_bytes - layer.weight_bytes,
                    gradients + layer.gradient_bytes,
                )
            else:
                more = owning_bytes(layer, len(devices), sums_wait=waits)
                owned[owner] = owned.get(owner, 0.0) + more
        for devices, (variables, gradients) in shared.items():
            for here in by_machine(devices, self._cluster).values():
                num_waiting = len(here) - 1 if waits else len(here)
                more = (variables + gradients * num_waiting) / len(here)
                for device in here:
                    owned[device] = owned.get(device, 0.0) + more
        return owned

    def _exchanges(
        self, kinds: Mapping[_KindKey, list[Group]], assignment: Assignment
    ) -> dict[_KindKey, WeightSeconds]:
        profile = self._costs.profile
        travel = exchange_seconds(assignment, self._model, self._cluster)
        update = update_seconds(assignment, profile)
        return {
            key: WeightSeconds.of(itertools.chain(*groups), travel, update)
            for key, groups in kinds.items()
        }


def _samples_of(
    kinds: Mapping[_KindKey, list[Group]], replicas: Sequence[ReplicaAssignment]
) -> dict[_KindKey, int]:
    """Return the most samples of a replica of each kind, at least 1."""
    by_first = {replica.spans[0].device: replica.samples for replica in replicas}
    return {
        key: max(1, *(by_first.get(group[0], 0) for group in groups))
        for key, groups in kinds.items()
    }
