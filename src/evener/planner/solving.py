"""Best assignment of one grouping: cuts, micro-batches, shares and owners.

Shares depend on the cuts, cuts on the samples of a micro-batch, the traffic of weights on the
owners, and owners on the memory that samples leave free. The solver iterates over them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from evener.cost_model.assignment import EACH_MACHINE, HOST_OWNER, Assignment, ReplicaAssignment
from evener.cost_model.exchange import ExchangeSeconds, exchange_seconds
from evener.cost_model.memory import predict_memory, shortages
from evener.cost_model.ownership import by_machine, holders_of, spread_owners
from evener.cost_model.prediction import update_seconds
from evener.cost_model.stage_memory import gradients_wait
from evener.planner.filling import ReplicaClass, fill
from evener.planner.group_costs import Exchange, GroupCosts, Shape
from evener.planner.group_kind import GroupKind
from evener.planner.groupings import (
    MOST_FOR_ALL,
    Group,
    Grouping,
    kind_of,
)
from evener.planner.owner_choice import owners_that_fit, owning_bytes
from evener.planner.owner_rules import UNLIMITED_HOST, OwnerWay

_MOST_ROUNDS = 3


_KindKey = tuple[object, ...]


class Solver:
    """Solver that finds the assignment of a grouping.

    Args:
        costs: Costs of groups.
        batch_size: Samples of the global batch.
        num_micro_batches: Numbers of micro-batches to try, in ascending order.
        as_fast: Slowdown tolerated for fewer micro-batches, as a factor of at least 1.
    """

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
        exchanges = dict.fromkeys(kinds, Exchange())
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
        exchanges: Mapping[_KindKey, Exchange],
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
    ) -> dict[_KindKey, Exchange]:
        profile = self._costs.profile
        travel = exchange_seconds(assignment, self._model, self._cluster)
        none = ExchangeSeconds()
        update = update_seconds(assignment, profile)
        return {
            key: Exchange(
                arrival_seconds=max(travel.get(d, none).arrival for group in groups for d in group),
                departure_seconds=max(
                    travel.get(d, none).departure for group in groups for d in group
                ),
                update_seconds=max(
                    update.get(d, 0.0) for group in groups for d in (*group, HOST_OWNER)
                ),
            )
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
