"""Assignment of a model to devices: a plan in numbers, with which the planner computes.

A `Plan` names devices and layers by patterns; an `Assignment` has their indices, for one model and
one batch size.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evener.errors import PlanError, did_you_mean, listed
from evener.plan.parts import (
    HOST,
    HOST_DEVICE,
    OwnerRule,
    Owners,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    ScheduleName,
    Stage,
    matches,
    owner_of,
    stage_of,
)
from evener.plan.plan import Plan, split_batch
from evener.plan.profile import Cluster, LayerCosts, ModelCosts

HOST_OWNER = -1
"""Owner instead of a device index: a layer's variables live in host memory."""

EACH_MACHINE = -2
"""Owner instead of a device index: each machine has a copy of the layer's variables, sharded over
those of its devices that compute the layer; gradients are all-reduced between machines."""


@dataclass(frozen=True, slots=True)
class Span:
    device: int  # Device index in the cluster
    first: int  # Index of the first layer
    end: int  # Index of the last layer, plus 1

    @property
    def layers(self) -> range:
        return range(self.first, self.end)


def spans_of(devices: Iterable[int], cuts: Sequence[int]) -> tuple[Span, ...]:
    """Return stages by their first layers, followed by the number of layers."""
    stages = zip(devices, itertools.pairwise(cuts), strict=True)
    return tuple(Span(device, first, end) for device, (first, end) in stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAssignment:
    samples: int  # Samples per global batch, above 0
    spans: tuple[Span, ...]  # Stages in order; together they have all layers
    num_micro_batches: int = 1  # Micro-batches per step, at least 1
    in_flight: int = 1  # Most micro-batches that are alive at once, at least 1
    schedule: ScheduleName = "1f1b"  # Schedule of the pipeline

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(span.device for span in self.spans)

    @property
    def micro_batch(self) -> float:
        """The samples of a micro-batch; the mean if they do not divide evenly."""
        return self.samples / self.num_micro_batches

    @property
    def accumulations(self) -> float:
        """Mean gradient additions per micro-batch; the first micro-batch needs none."""
        return 1 - 1 / self.num_micro_batches

    @property
    def most_alive(self) -> list[int]:
        """The most micro-batches that are alive in each stage under 1F1B."""
        return [max(1, self.in_flight - stage) for stage in range(len(self.spans))]

    def in_micro_batches(self, count: int) -> ReplicaAssignment:
        count = min(count, self.samples)
        in_flight = min(len(self.spans), count)
        return dataclasses.replace(self, num_micro_batches=count, in_flight=in_flight)

    def resized(self, samples: int) -> ReplicaAssignment:
        # Not `dataclasses.replace`, which is several times slower: the search asks often.
        count = min(self.num_micro_batches, samples)
        return ReplicaAssignment(
            samples=samples,
            spans=self.spans,
            num_micro_batches=count,
            in_flight=min(self.in_flight, count),
            schedule=self.schedule,
        )

    def moved_to(self, devices: Sequence[int]) -> ReplicaAssignment:
        stages = zip(devices, self.spans, strict=True)
        spans = tuple(Span(device, span.first, span.end) for device, span in stages)
        return dataclasses.replace(self, spans=spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    replicas: tuple[ReplicaAssignment, ...]  # Replicas with at least one sample
    # Owner of each layer's variables: a device index, `HOST_OWNER` or `EACH_MACHINE`
    owners: tuple[int, ...]
    recompute: tuple[bool, ...]  # Whether the activations of each layer are recomputed
    # Whether reductions over the global batch are barriers; False if `BatchNormalization`
    # normalizes per device
    has_barriers: bool = True

    @property
    def batch_size(self) -> int:
        return sum(replica.samples for replica in self.replicas)

    @property
    def is_split_in_time(self) -> bool:
        """Whether replicas have micro-batches that no pipeline needs."""
        return any(len(r.spans) == 1 and r.num_micro_batches > 1 for r in self.replicas)


def spread_owners(
    layers: Sequence[LayerCosts],
    replicas: Sequence[ReplicaAssignment],
    cluster: Cluster,
    fixed: Sequence[int | None] | None = None,
) -> tuple[int, ...]:
    """Return the owner of each layer: the emptiest of the devices that compute it."""
    given = fixed or [None] * len(layers)
    capacities = [device.memory_bytes for device in cluster.devices]
    smallest = min((size for size in capacities if size), default=1)
    holders = holders_of(replicas, len(layers))
    cross = {devices: crosses_machines(devices, cluster) for devices in set(holders)}
    owned: dict[int, float] = {}
    owners: dict[int, int] = {}
    heaps: dict[tuple[int, ...], list[tuple[float, int]]] = {}
    order = sorted(range(len(layers)), key=lambda index: -layers[index].owned_bytes)
    for index in sorted(order, key=lambda index: given[index] is None):
        chosen, devices = given[index], holders[index]
        if chosen is None and cross[devices]:
            chosen = EACH_MACHINE
        if chosen is None:
            if devices not in heaps:
                heaps[devices] = sorted((owned.get(device, 0.0), device) for device in devices)
            heap = heaps[devices]
            fullness, chosen = heap[0]
            while fullness < owned.get(chosen, 0.0):
                heapq.heapreplace(heap, (owned[chosen], chosen))
                fullness, chosen = heap[0]
        capacity = smallest if chosen < 0 else capacities[chosen] or smallest
        owned[chosen] = owned.get(chosen, 0.0) + layers[index].owned_bytes / capacity
        owners[index] = chosen
    return tuple(owners[index] for index in range(len(layers)))


def crosses_machines(devices: Sequence[int], cluster: Cluster) -> bool:
    return len({cluster.devices[device].machine for device in devices}) > 1


def by_machine(devices: Iterable[int], cluster: Cluster) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for device in devices:
        found.setdefault(cluster.devices[device].machine, []).append(device)
    return found


def holders_of(replicas: Sequence[ReplicaAssignment], num_layers: int) -> list[tuple[int, ...]]:
    # In large clusters most replicas have the same stages.
    by_ends: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, span in enumerate(span for replica in replicas for span in replica.spans):
        by_ends.setdefault((span.first, span.end), []).append((number, span.device))
    around: list[list[tuple[int, int]]] = [[] for _ in range(num_layers)]
    for first, end in by_ends:
        for layer in range(first, end):
            around[layer].append((first, end))
    known: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
    for ends in set(map(tuple, around)):
        numbered = sorted(pair for of_ends in ends for pair in by_ends[of_ends])
        known[ends] = tuple(dict.fromkeys(device for _, device in numbered))
    return [known[tuple(ends)] for ends in around]


def plan_of(
    assignment: Assignment,
    model: ModelCosts,
    cluster: Cluster,
    *,
    predicted: Predicted | None = None,
    rejected: tuple[Rejected, ...] = (),
) -> Plan:
    used = {span.device for replica in assignment.replicas for span in replica.spans}
    used.update(owner for owner in assignment.owners if owner >= 0)
    names = [device.name for device in cluster.devices]
    layer_patterns = [literal(layer.name) for layer in model.layers]
    owners: Owners = "sharded"
    if set(assignment.owners) == {HOST_OWNER}:
        owners = "central"
    elif assignment.owners != spread_owners(model.layers, assignment.replicas, cluster):
        rules: list[OwnerRule] = []
        for layer, owner in zip(model.layers, assignment.owners, strict=True):
            if layer.owned_bytes:
                assert owner != EACH_MACHINE, "owners in each machine are never named"
                device = HOST if owner == HOST_OWNER else names[owner]
                rules.append(OwnerRule(pattern=f"{literal(layer.name)}/*", device=device))
        if rules:
            # Variables outside the profiled layers, such as counters, need an owner too.
            owners = (*rules, OwnerRule(pattern="*", device=rules[0].device))
    replicas = tuple(
        Replica(
            share=replica.samples,
            stages=tuple(
                Stage(
                    device=names[span.device],
                    layers=tuple(layer_patterns[span.first : span.end])
                    if len(replica.spans) > 1
                    else ("*",),
                )
                for span in replica.spans
            ),
            num_micro_batches=replica.num_micro_batches,
            in_flight=replica.in_flight,
            schedule=replica.schedule,
        )
        for replica in assignment.replicas
    )
    return Plan(
        devices=tuple(
            PlanDevice.named(names[index], cluster.devices[index].memory_bytes)
            for index in sorted(used)
        ),
        replicas=replicas,
        owners=owners,
        recompute=tuple(itertools.compress(layer_patterns, assignment.recompute)),
        batch_norm="synchronized" if assignment.has_barriers else "per_device",
        predicted=predicted,
        rejected=rejected,
    )


def assignment_of(plan: Plan, model: ModelCosts, cluster: Cluster, batch_size: int) -> Assignment:
    """Return a plan in numbers; layers without an owner are spread by bytes, as by the engine."""
    device_indices = {device.name: index for index, device in enumerate(cluster.devices)}
    plan.check_devices(tuple(device_indices))
    samples = split_batch(batch_size, plan.shares)
    replicas = tuple(
        ReplicaAssignment(
            samples=count,
            spans=_spans(replica, f"replicas[{number}]", model, device_indices),
            num_micro_batches=replica.num_micro_batches,
            in_flight=replica.in_flight,
            schedule=replica.schedule,
        )
        for number, (replica, count) in enumerate(zip(plan.replicas, samples, strict=True))
        if count
    )
    fixed: list[int | None] = []
    for layer in model.layers:
        name = f"{layer.name}/kernel"
        named = plan.owner_of(name)
        is_host = named == HOST_DEVICE and (
            plan.owners == "central" or HOST_DEVICE not in device_indices
        )
        if named == HOST_DEVICE and not isinstance(plan.owners, str):
            # A rule may name the host, or the device ``cpu:0``, which is in its place elsewhere.
            rules = [dataclasses.replace(rule, device=f"<{rule.device}>") for rule in plan.owners]
            is_host = is_host or owner_of(name, rules) == f"<{HOST}>"
        fixed.append(None if named is None else HOST_OWNER if is_host else device_indices[named])
    return Assignment(
        replicas=replicas,
        owners=spread_owners(model.layers, replicas, cluster, fixed),
        recompute=tuple(matches(layer.name, plan.recompute) for layer in model.layers),
        has_barriers=plan.batch_norm == "synchronized",
    )


@functools.cache
def literal(name: str) -> str:
    """Return the pattern that matches only a name.

    >>> literal("block[1]")
    'block[[]1]'
    """
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _spans(
    replica: Replica, place: str, model: ModelCosts, device_indices: dict[str, int]
) -> tuple[Span, ...]:
    if len(replica.stages) == 1:
        return (Span(device_indices[replica.stages[0].device], 0, len(model.layers)),)
    names = [layer.name for layer in model.layers]
    layers = listed([repr(name) for name in names], 12)
    numbers: list[int] = []
    for name in names:
        found = stage_of(name, replica.stages)
        # A layer that no stage names is computed with the layer before it.
        numbers.append(found if found is not None else numbers[-1] if numbers else 0)
    for index, stage in enumerate(replica.stages):
        for pattern in stage.layers:
            if not any(matches(name, [pattern]) for name in names):
                raise PlanError(
                    "PLAN-040",
                    f"{place}.stages[{index}] names {pattern!r}, but the model "
                    f"{model.name!r} has no such layer.",
                    why=f"Its layers are {layers}.{did_you_mean(pattern, names)}",
                    fix="Correct the pattern, or profile the model again if it has changed.",
                )
    if numbers != sorted(numbers) or len(set(numbers)) < len(replica.stages):
        raise PlanError(
            "PLAN-041",
            f"The stages of {place} cannot be costed.",
            why="Each stage must have layers, and samples must pass the stages in their order: "
            f"the layers {layers} are in the stages {numbers}.",
            fix="Give each stage layers that follow one another.",
        )
    return tuple(
        Span(
            device_indices[stage.device],
            numbers.index(index),
            len(numbers) - numbers[::-1].index(index),
        )
        for index, stage in enumerate(replica.stages)
    )
