"""Groups of devices that compute a replica together.

Which groups there are, the best cut of the layers over the devices of a group, and the seconds
and bytes of a group by its samples.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from evener.plan.profile import Cluster, CostProfile, Curve
from evener.planner.assignment import ReplicaAssignment, Span, crosses_machines
from evener.planner.memory import ExecutionMode, StageMemory, stage_memory
from evener.planner.step_time import (
    WeightSeconds,
    is_in_parts,
    passes_are_separate,
    phase_seconds,
    phases_of,
)

T = TypeVar("T")

Group = tuple[int, ...]
"""Device indices in the cluster, in the order of the stages."""

Grouping = tuple[Group, ...]

MOST_FOR_ALL = 4
"""Largest number of devices for which all groupings are tried."""

MOST_FOR_BEST_CUTS = 20_000
"""Upper limit of stages x layers^2 for the optimal search of cuts."""

_MOST_STAGES = 6


def groupings_of(cluster: Cluster, num_layers: int) -> Iterator[Grouping]:
    """Yield the groupings to try, each once; no pipeline has more stages than the model layers.

    ::

        cluster            groupings
        a  b  c            (a)(b)(c)   (a b)(c)   (b a)(c)   (a b c)   (a)(b)   (a)  ...

    A group of several devices is a pipeline in that order. A device may be left out. For up to
    `MOST_FOR_ALL` devices these are all groupings. For more, they are those in which every group
    has the same number of devices, all of one kind or in the same mix of kinds.
    """
    devices = range(len(cluster.devices))
    groupings = _regular_groupings(cluster, num_layers)
    if len(devices) <= MOST_FOR_ALL:
        groupings = (
            grouping
            for size in range(len(devices), 0, -1)
            for chosen in itertools.combinations(devices, size)
            for blocks in _partitions(chosen)
            for grouping in itertools.product(*map(itertools.permutations, blocks))
        )

    def signature(group: Group) -> tuple[object, ...]:
        """Return a key that is equal for equivalent groups: kinds, links and shared machines."""
        machines = [cluster.devices[device].machine for device in group]
        return tuple(
            (
                *kind_of(device, cluster),
                cluster.machines[machine].link.bytes_per_second,
                machines.index(machine),
            )
            for device, machine in zip(group, machines, strict=True)
        )

    short = (each for each in groupings if all(len(group) <= num_layers for group in each))
    yield from first_of_each(short, lambda grouping: tuple(sorted(map(signature, grouping))))


def first_of_each(items: Iterable[T], key: Callable[[T], object]) -> Iterator[T]:
    """Yield the items whose key no item before has."""
    seen: set[object] = set()
    for item in items:
        if (found := key(item)) not in seen:
            seen.add(found)
            yield item


def kind_of(device: int, cluster: Cluster) -> tuple[str, int]:
    found = cluster.devices[device]
    return found.type, found.memory_bytes or 0


def is_over_machines(grouping: Grouping, cluster: Cluster) -> bool:
    devices = [device for group in grouping for device in group]
    return len(grouping) > 1 and crosses_machines(devices, cluster)


def _partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for blocks in _partitions(rest):
        yield [[first], *blocks]
        for number in range(len(blocks)):
            yield [
                [first, *block] if index == number else block for index, block in enumerate(blocks)
            ]


def _regular_groupings(cluster: Cluster, num_layers: int) -> Iterator[Grouping]:
    by_kind: dict[tuple[str, int], list[int]] = defaultdict(list)
    for device in range(len(cluster.devices)):
        by_kind[kind_of(device, cluster)].append(device)
    for size in range(len(by_kind), 0, -1):
        for devices in itertools.combinations(by_kind.values(), size):
            yield tuple((device,) for of_kind in devices for device in of_kind)
            count = sum(map(len, devices))
            # Powers of two, and all devices.
            depths = [2**k for k in range(1, 11) if 2**k <= min(count, num_layers)]
            if count not in depths and count <= min(64, num_layers):
                depths.append(count)
            for depth in depths:
                if all(len(of_kind) % depth == 0 for of_kind in devices):
                    yield tuple(
                        tuple(of_kind[begin : begin + depth])
                        for of_kind in devices
                        for begin in range(0, len(of_kind), depth)
                    )
                if len(devices) > 1 and count % depth == 0:
                    yield from _mixed(devices, count // depth)


def _mixed(devices: Sequence[Sequence[int]], num_groups: int) -> Iterator[Grouping]:
    """Yield groupings with the same number of each kind in every group, in two orders."""
    if any(len(of_kind) % num_groups for of_kind in devices):
        return

    def part(of_kind: Sequence[int], number: int) -> Sequence[int]:
        size = len(of_kind) // num_groups
        return of_kind[number * size : (number + 1) * size]

    for order in (devices, devices[::-1]):
        yield tuple(
            tuple(device for of_kind in order for device in part(of_kind, number))
            for number in range(num_groups)
        )


StageSeconds = Callable[[int, int, int], float]
"""Seconds of a micro-batch in a stage: stage number, first layer, last layer plus 1."""

StageFits = Callable[[int, int, int], bool]
"""Whether a stage fits into the memory of its device; the arguments are those of `StageSeconds`."""

_Way = tuple[float, float, tuple[int, ...]]
"""Longest stage and sum of the stages' seconds, and the cuts so far."""


def best_cuts(
    num_stages: int, num_layers: int, num_micro_batches: int, seconds: StageSeconds, fits: StageFits
) -> tuple[int, ...] | None:
    """Return the first layer of each stage, and the number of layers; None if no cuts fit.

    ::

        layers    | 0 1 2 3 4 | 5 6 | 7 8 9 |        T = sum of t_s + (m - 1) max t_s
        stages        t_0       t_1    t_2

    T is the time of a pipeline of m micro-batches whose stages take t_s for each. For short models
    the cuts are optimal: for each number of layers and stages, all Pareto-optimal pairs (max, sum)
    are kept. For long models only the maximum is minimized. More layers never take less time, and a
    stage that fits also fits with fewer layers.

    Source: Y. Huang et al., "GPipe", 2019, section 2.3, for the time; the search is our own.
    """
    if num_stages * num_layers**2 > MOST_FOR_BEST_CUTS:
        return _cuts_of_least_maximum(num_stages, num_layers, seconds, fits)
    ways: dict[int, list[_Way]] = {0: [(0.0, 0.0, (0,))]}
    for stage in range(num_stages):
        following: dict[int, list[_Way]] = {}
        for first, before in ways.items():
            is_last = stage == num_stages - 1
            ends = range(
                num_layers if is_last else first + 1, num_layers - (num_stages - stage - 1) + 1
            )
            # The key is True if the stage does not fit, and stays True for more layers.
            count = bisect.bisect_left(
                ends, True, key=lambda end, stage=stage, first=first: not fits(stage, first, end)
            )
            for end in ends[:count]:
                took = seconds(stage, first, end)
                following.setdefault(end, []).extend(
                    (max(most, took), total + took, (*cuts, end)) for most, total, cuts in before
                )
        ways = {}
        for end, some in following.items():
            kept: list[_Way] = []
            for way in sorted(some):
                if not kept or way[1] < kept[-1][1]:
                    kept.append(way)
            ways[end] = kept
    done = ways.get(num_layers)
    if not done:
        return None
    return min(done, key=lambda way: way[1] + (num_micro_batches - 1) * way[0])[2]


def _cuts_of_least_maximum(
    num_stages: int, num_layers: int, seconds: StageSeconds, fits: StageFits
) -> tuple[int, ...] | None:
    """Return the cuts with the least longest stage, by bisection."""
    low, high = 0.0, max(seconds(stage, 0, num_layers) for stage in range(num_stages))
    best = _greedy_cuts(num_stages, num_layers, high, seconds, fits)
    while best is not None and high - low > 1e-4 * high:
        middle = (low + high) / 2
        cuts = _greedy_cuts(num_stages, num_layers, middle, seconds, fits)
        if cuts is None:
            low = middle
        else:
            best, high = cuts, middle
    return best


def _greedy_cuts(
    num_stages: int, num_layers: int, most: float, seconds: StageSeconds, fits: StageFits
) -> tuple[int, ...] | None:
    """Return cuts in which each stage takes as many layers as possible; None if some are left.

    If a stage cannot take even one layer, it may be on a slow device; earlier stages may then have
    to take fewer layers, so all possible ends of each stage are tried.
    """

    def is_too_long(stage: int, first: int, end: int) -> bool:
        return seconds(stage, first, end) > most or not fits(stage, first, end)

    cuts = [0]
    for stage in range(num_stages):
        first = cuts[-1]
        ends = range(first + 1, num_layers - (num_stages - stage - 1) + 1)
        # The key is True if the stage is too long, and stays True for more layers.
        count = bisect.bisect_left(
            ends, True, key=lambda end, stage=stage, first=first: is_too_long(stage, first, end)
        )
        if count == 0:
            break
        cuts.append(first + count)
    else:
        return tuple(cuts) if cuts[-1] == num_layers else None
    # By end, the first layer of each stage.
    begins: list[dict[int, int]] = [{0: 0}]
    for stage in range(num_stages):
        following: dict[int, int] = {}
        for first in begins[-1]:
            for end in range(first + 1, num_layers - (num_stages - stage - 1) + 1):
                if is_too_long(stage, first, end):
                    break
                following.setdefault(end, first)
        begins.append(following)
    if num_layers not in begins[-1]:
        return None
    reached = [num_layers]
    for of_stage in reversed(begins[1:]):
        reached.append(of_stage[reached[-1]])
    return tuple(reversed(reached))


class GroupCosts:
    """Costs of groups of devices as one replica, for one choice of recomputed layers."""

    def __init__(self, profile: CostProfile, recompute: tuple[bool, ...]) -> None:
        self.profile = profile
        self.recompute = recompute
        self._layers = profile.model.layers
        has_barriers = profile.model.last_barrier >= 0
        self._phases = phases_of(self._layers) if has_barriers else []
        # Bytes that the first k layers need more if they are owned instead of fetched.
        more = (layer.owned_bytes - layer.weight_bytes for layer in self._layers)
        self._own = list(itertools.accumulate(more, initial=0))
        # The same replica occurs in several groupings, rounds and owner rules.
        self._total = functools.cache(self._curves)
        self._memory_of = functools.cache(self._memory_of_span)
        self._sums = functools.cache(self._sums_of_type)
        self._passes = functools.cache(self._makespan)
        self._stages = functools.cache(self._curves_of_stages)

    def seconds(self, replica: ReplicaAssignment, exchange: WeightSeconds) -> float:
        makespan, forwards, backwards = self._passes(replica)
        arriving = max(0.0, exchange.arrival_seconds - forwards)
        leaving = max(0.0, exchange.departure_seconds - backwards)
        return makespan + arriving + leaving + exchange.update_seconds

    def compute_seconds(self, replica: ReplicaAssignment) -> float:
        return self._passes(replica)[0]

    def _makespan(self, replica: ReplicaAssignment) -> tuple[float, float, float]:
        count, size, added = replica.num_micro_batches, replica.micro_batch, replica.accumulations
        forward, both, stages, adding, travel = self._stages(replica.spans)
        forwards = forward(size)
        total = both(size) + added * adding
        if len(replica.spans) == 1:
            makespan = count * total
        else:
            latency, per_sample = travel
            longest = max(stage(size) + added * of_stage for stage, of_stage in stages)
            once = total + 2 * (latency + per_sample * size)
            makespan = once + (count - 1) * max(longest, once / replica.in_flight)
        if self._phases and is_in_parts(replica):
            phases = sum(
                phase_seconds(phase, replica, self.recompute, self.profile)
                for phase in self._phases
            )
            makespan = max(makespan, phases)
        return makespan, forwards, total - forwards

    def _curves_of_stages(
        self, spans: tuple[Span, ...]
    ) -> tuple[Curve, Curve, tuple[tuple[Curve, float], ...], float, tuple[float, float]]:
        """Return forward passes, all passes, stages with their additions, their sum, transfers."""
        cluster, times = self.profile.cluster, self.profile.times
        types = [cluster.devices[span.device].type for span in spans]
        passes = [
            self._total(name, span.first, span.end) for name, span in zip(types, spans, strict=True)
        ]
        adding = [
            math.fsum(layer.accumulate_seconds for layer in times[name][span.first : span.end])
            for name, span in zip(types, spans, strict=True)
        ]
        stages = tuple(
            dict.fromkeys((Curve.total(p), a) for p, a in zip(passes, adding, strict=True))
        )
        if len(stages) > _MOST_STAGES:
            # For many stages, one curve of their maxima; it is exact at the measured points.
            stages = ((Curve.most(stage for stage, _ in stages), max(adding)),)
        latency = per_sample = 0.0
        for source, target in itertools.pairwise(spans):
            link = cluster.link(source.device, target.device)
            latency += link.latency_seconds
            per_sample += self._layers[source.end - 1].boundary_bytes / link.bytes_per_second
        forward = Curve.total(of_stage for of_stage, _ in passes)
        both = Curve.total(curve for of_stage in passes for curve in of_stage)
        return forward, both, stages, sum(adding), (latency, per_sample)

    def most_samples(
        self, replica: ReplicaAssignment, limit: int, owned: Mapping[int, float], *, is_alone: bool
    ) -> int:
        """Return the most samples, up to a limit, that fit into the memory of the devices."""

        def is_too_much(samples: int) -> bool:
            room = self.room(replica.resized(samples), owned, is_alone=is_alone)
            return any(left < 0 for left in room.values())

        # The key is True if the samples do not fit, and stays True for more.
        return bisect.bisect_left(range(1, limit + 1), True, key=is_too_much)

    def room(
        self, replica: ReplicaAssignment, owned: Mapping[int, float], *, is_alone: bool
    ) -> dict[int, float]:
        left: dict[int, float] = {}
        count = replica.num_micro_batches
        for span, alive in zip(replica.spans, replica.most_alive, strict=True):
            memory = self.profile.cluster.devices[span.device].memory_bytes
            if memory is not None:
                memory_of = self._memory_of(span.first, span.end, count > 1, is_alone)
                needed = memory_of.weights + memory_of.total(count, alive, replica.micro_batch)
                left[span.device] = memory - needed - owned.get(span.device, 0.0)
        return left

    def cut(
        self, group: Group, num_micro_batches: int, size: float, own_part: float | None
    ) -> tuple[int, ...] | None:
        """Return the best cuts; stages own ``own_part`` of their variables, None ignores memory."""
        num_stages, num_layers = len(group), len(self._layers)
        if num_stages == 1:
            return (0, num_layers)
        devices = [self.profile.cluster.devices[device] for device in group]
        separate, fused = (
            [self._sums(device.type, size, is_separate) for device in devices]
            for is_separate in (True, False)
        )

        def seconds(stage: int, first: int, end: int) -> float:
            sums = separate if passes_are_separate(end, self.recompute) else fused
            return sums[stage][end] - sums[stage][first]

        def fits(stage: int, first: int, end: int) -> bool:
            memory = devices[stage].memory_bytes
            if memory is None or own_part is None:
                return True
            alive = max(1, min(num_stages, num_micro_batches) - stage)
            own = (self._own[end] - self._own[first]) * own_part
            needed = self._memory_of(first, end, num_micro_batches > 1, False)
            return own + needed.weights + needed.total(num_micro_batches, alive, size) <= memory

        return best_cuts(num_stages, num_layers, num_micro_batches, seconds, fits)

    def _curves(self, type_name: str, first: int, end: int) -> tuple[Curve, Curve]:
        separate = passes_are_separate(end, self.recompute)
        layers = list(
            zip(self.profile.times[type_name][first:end], self.recompute[first:end], strict=True)
        )
        return (
            Curve.total(layer.forward for layer, _ in layers),
            Curve.total(
                curve
                for layer, is_recomputed in layers
                for curve in layer.backward_curves(recompute=is_recomputed, separate=separate)
            ),
        )

    def _sums_of_type(self, type_name: str, size: float, separate: bool) -> list[float]:
        seconds = (
            layer.forward(size)
            + layer.backward_seconds(size, recompute=is_recomputed, separate=separate)
            for layer, is_recomputed in zip(
                self.profile.times[type_name], self.recompute, strict=True
            )
        )
        return list(itertools.accumulate(seconds, initial=0.0))

    def _memory_of_span(
        self, first: int, end: int, accumulates: bool, is_alone: bool
    ) -> StageMemory:
        model = self.profile.model
        is_whole = end - first == len(self._layers)
        in_order = accumulates or any(self.recompute) or not is_whole
        mode = ExecutionMode(
            recompute=self.recompute,
            has_order=in_order,
            waits=in_order or model.updates_wait or is_alone,
            has_barriers=model.last_barrier >= 0
            and not (is_alone and is_whole and not accumulates),
            is_alone=is_alone,
        )
        return stage_memory(Span(0, first, end), model, mode, accumulates=accumulates)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKind:
    """Groups with the same costs, and the replicas that they may compute."""

    groups: list[Group]
    # On the first group, with a sample in each micro-batch, by ascending numbers of these.
    options: list[ReplicaAssignment]
    costs: GroupCosts
    exchange: WeightSeconds
    limited: bool  # Whether memory limits apply.
    owned: Mapping[int, float]  # Bytes for owned variables; see `GroupCosts.most_samples`.
    is_alone: bool  # Whether one group computes everything.

    def limits(self, batch_size: int) -> list[int]:
        if not self.limited:
            return [batch_size] * len(self.options)
        fullest = max(self.groups, key=lambda group: max(self.owned.get(d, 0.0) for d in group))
        return [
            self.costs.most_samples(
                option.moved_to(fullest), batch_size, self.owned, is_alone=self.is_alone
            )
            for option in self.options
        ]

    def least_seconds(self, limits: list[int], *, exchange: bool) -> Callable[[int], float]:
        """Return a function from samples to the seconds of the best option that fits."""

        @functools.cache
        def least(samples: int) -> float:
            if samples == 0:
                return 0.0
            return min(
                (
                    self.costs.seconds(replica, self.exchange)
                    if exchange
                    else self.costs.compute_seconds(replica)
                    for replica in self._fitting(samples, limits)
                ),
                default=math.inf,
            )

        return least

    def best(self, samples: int, limits: list[int], as_fast: float) -> ReplicaAssignment:
        seconds = {
            replica: self.costs.seconds(replica, self.exchange)
            for replica in self._fitting(samples, limits)
        }
        enough = min(seconds.values()) * as_fast
        return next(replica for replica, took in seconds.items() if took <= enough)

    def _fitting(self, samples: int, limits: list[int]) -> Iterator[ReplicaAssignment]:
        for option, limit in zip(self.options, limits, strict=True):
            if samples <= limit:
                yield option.resized(samples)
