"""Refinement of the best candidates: other cuts, micro-batches and recomputed layers."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evener.plan.parts import ScheduleName
from evener.plan.profile import CostProfile
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    spread_owners,
)
from evener.planner.candidates import Candidate, PlanEvaluator, is_interleaved, recut
from evener.planner.groups import MOST_FOR_ALL, Grouping, Seconds, best_cuts
from evener.planner.memory import entering_bytes
from evener.planner.prediction import Prediction, recomputed_layers
from evener.planner.step_time import step_has_barriers

# Other schedules of a pipeline, and interleaved stages.
#
# ::
#
#     zero bubble     a | F0 F1 F2 .  .  B0 W0 ...     the devices and cuts of 1F1B
#     interleaved     a b a b                          v times as many stages, each of 1/v of the
#     layers

_MOST_CUTS = 500
_MOST_TRIED = 8


def with_schedule(
    replicas: Sequence[ReplicaAssignment], schedule: ScheduleName, counts: Sequence[int]
) -> Iterator[tuple[ReplicaAssignment, ...]]:
    """Yield pipelines with a schedule, in their number of micro-batches and in others."""
    others = tuple(dataclasses.replace(replica, schedule=schedule) for replica in replicas)
    yield others
    for count in counts:
        yield tuple(in_micro_batches(replica, count) for replica in others)


def in_micro_batches(replica: ReplicaAssignment, count: int) -> ReplicaAssignment:
    """Return a replica with ``count`` micro-batches, but at most one per sample."""
    count = min(count, replica.samples)
    return dataclasses.replace(
        replica, num_micro_batches=count, in_flight=min(len(replica.spans), count)
    )


def interleaved(
    replica: ReplicaAssignment,
    num_rounds: int,
    num_micro_batches: int,
    profile: CostProfile,
    most_seconds: float,
) -> Iterator[tuple[float, ReplicaAssignment]]:
    """Yield interleaved pipelines with an estimate of their seconds.

    The estimate is the time of the busiest device plus the time of a micro-batch in one round on
    the other devices. For short models all cuts are estimated and the best are yielded.
    """
    devices = list(dict.fromkeys(replica.devices))
    stages = devices * num_rounds
    sums = [_sums(device, replica.samples / num_micro_batches, profile) for device in devices]

    def seconds(stage: int, first: int, end: int) -> float:
        of_device = sums[stage % len(devices)]
        return of_device[end] - of_device[first]

    timed: list[tuple[float, tuple[int, ...]]] = []
    for cuts in _cuts(len(stages), len(profile.model.layers), num_micro_batches, seconds):
        took = [seconds(k, *ends) for k, ends in enumerate(itertools.pairwise(cuts))]
        busy = max(sum(took[k :: len(devices)]) for k in range(len(devices)))
        if num_micro_batches * busy < most_seconds:
            timed.append((num_micro_batches * busy + (sum(took) - busy) / num_rounds, cuts))
    for estimate, cuts in heapq.nsmallest(_MOST_TRIED, timed):
        spans = (
            Span(device, first, end)
            for device, (first, end) in zip(stages, itertools.pairwise(cuts), strict=True)
        )
        found = dataclasses.replace(
            replica,
            spans=tuple(spans),
            num_micro_batches=num_micro_batches,
            in_flight=min(2 * len(devices), num_micro_batches),
            schedule="1f1b",
        )
        yield estimate + _travel_seconds(found, profile), found


def _fits_always(stage: int, first: int, end: int) -> bool:
    return True


def _travel_seconds(replica: ReplicaAssignment, profile: CostProfile) -> float:
    """Return the transfer seconds of a micro-batch through all stages and back."""
    cluster, layers = profile.cluster, profile.model.layers
    return 2 * sum(
        cluster.link(before.device, after.device).seconds(
            layers[before.end - 1].boundary_bytes * replica.micro_batch
        )
        for before, after in itertools.pairwise(replica.spans)
    )


def _cuts(
    num_stages: int, num_layers: int, num_micro_batches: int, seconds: Seconds
) -> Iterator[tuple[int, ...]]:
    """Yield all cuts of a short model, or the one with the least longest stage of a long one."""
    if math.comb(num_layers - 1, num_stages - 1) > _MOST_CUTS:
        cuts = best_cuts(num_stages, num_layers, num_micro_batches, seconds, _fits_always)
        assert cuts is not None, "cuts always exist without memory limits"
        yield cuts
        return
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
        yield (0, *inner, num_layers)


def interleaved_counts(num_devices: int, counts: Sequence[int], samples: int) -> list[int]:
    """Return the numbers of micro-batches that an interleaved schedule can have.

    >>> interleaved_counts(3, (1, 2, 4, 8), 64)
    [3, 6]
    >>> interleaved_counts(2, (1, 2, 4, 8), 4)
    [2, 4]
    """
    most = min(max(counts), samples)
    return [num_devices * count for count in counts if num_devices * count <= most]


def _sums(device: int, size: float, profile: CostProfile) -> list[float]:
    """Return the seconds of the first k layers, forward and backward, for each k."""
    times = profile.times[profile.cluster.devices[device].type]
    return list(
        itertools.accumulate(
            (layer.forward(size) + layer.backward(size) for layer in times), initial=0.0
        )
    )


# Choice of the layers to recompute: as few as the memory of the devices requires.
#
# ::
#
#     all recomputed     | a b c d e |    free memory on each device
#     kept instead       |   b   d   |    the most seconds saved per byte
#
# Greedily stop recomputing layers, ordered by the seconds saved per fraction of free memory that
# their activations fill, on the device where that fraction is largest. The estimate adds these
# bytes
# at every moment of the step, so no device runs out of memory.

_MOST_TIMES = 4
"""Most repetitions of each kind of change."""

_RECOMPUTING_MOST_TRIED, _MOST_SWAPS = 4, 100

Predict = Callable[[Assignment], Prediction]


def with_all_recomputed(assignment: Assignment, profile: CostProfile) -> Assignment:
    """Return an assignment that recomputes all layers whose activations exceed their inputs."""
    return dataclasses.replace(assignment, recompute=recomputed_layers(profile.model))


def give_back(
    assignment: Assignment, prediction: Prediction, profile: CostProfile, predict: Predict
) -> tuple[Assignment, Prediction]:
    """Return an assignment that recomputes fewer layers, with its prediction."""
    found = assignment, prediction
    for _ in range(_MOST_TIMES):
        given = _given(*found, profile)
        fewer = _without(found[0], given, profile, predict) if given else None
        if fewer is None:
            break
        found = fewer
    for _ in range(_MOST_TIMES):
        nearly = itertools.islice(_nearly(*found, profile), _RECOMPUTING_MOST_TRIED)
        ways = (_without(found[0], {layer}, profile, predict) for layer in nearly)
        fewer = next((result for result in ways if result is not None), None)
        if fewer is None:
            break
        found = fewer
    return found


def _without(
    assignment: Assignment,
    given: Collection[int],
    profile: CostProfile,
    predict: Predict,
) -> tuple[Assignment, Prediction] | None:
    """Return an assignment that keeps the activations of given layers; None if it does not fit."""
    recompute = tuple(
        is_recomputed and index not in given
        for index, is_recomputed in enumerate(assignment.recompute)
    )
    if not any(recompute):
        return None
    fewer = dataclasses.replace(assignment, recompute=recompute)
    found = predict(fewer)
    return None if min(_left(found, profile).values(), default=0.0) < 0 else (fewer, found)


def swaps(assignment: Assignment, profile: CostProfile) -> Iterator[Assignment]:
    """Yield assignments that recompute one or two layers fewer, or others instead."""
    may_be = recomputed_layers(profile.model)
    recompute = assignment.recompute
    indices = [k for k, is_recomputed in enumerate(recompute) if is_recomputed]
    recomputed = _unlike(indices, assignment, profile)
    # Of layers that are alike, two may be kept together.
    others = _unlike([k for k in indices if k not in recomputed], assignment, profile)
    pairs = itertools.combinations(sorted([*recomputed, *others]), 2)
    kept = [k for k, is_recomputed in enumerate(recompute) if not is_recomputed and may_be[k]]
    instead = _unlike(kept, assignment, profile)
    less = [*((layer,) for layer in recomputed), *pairs]
    more = [(), *((layer,) for layer in instead)]
    ways = itertools.chain(
        itertools.product(less, more),
        itertools.product(less, itertools.combinations(instead, 2)),
    )
    for given, taken in itertools.islice(ways, _MOST_SWAPS):
        changed = tuple(
            index in taken or (is_recomputed and index not in given)
            for index, is_recomputed in enumerate(recompute)
        )
        yield dataclasses.replace(assignment, recompute=changed)


def _given(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> set[int]:
    """Return the layers whose activations can be kept within the free memory."""
    left = _left(prediction, profile)
    needs = _needed_bytes(assignment, prediction, profile)
    given: set[int] = set()
    for index in _by_worth(assignment, needs, left, profile):
        if all(more <= left[device] for device, more, _ in needs[index] if device in left):
            given.add(index)
            for device, more, _ in needs[index]:
                if device in left:
                    left[device] -= more
    return given


def _nearly(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> Iterator[int]:
    """Yield layers that fit if the peak is in their own backward pass.

    Their recomputed activations are in memory there anyway.
    """
    left = _left(prediction, profile)
    needs = _needed_bytes(assignment, prediction, profile)
    worth = _by_worth(assignment, needs, left, profile)
    for index in _unlike(worth, assignment, profile):
        if all(
            more - anyway <= left[device] for device, more, anyway in needs[index] if device in left
        ):
            yield index


_Needs = Mapping[int, Sequence[tuple[int, float, float]]]


def _by_worth(
    assignment: Assignment, needs: _Needs, left: Mapping[int, float], profile: CostProfile
) -> list[int]:
    """Return the recomputed layers, those that save the most seconds per memory first."""

    def filled(index: int) -> float:
        return max(
            (more / max(left[device], 1.0) for device, more, _ in needs[index] if device in left),
            default=0.0,
        )

    def saved(index: int) -> float:
        return _recompute_seconds(index, assignment, profile) / max(filled(index), 1e-12)

    recomputed = [
        index for index, is_recomputed in enumerate(assignment.recompute) if is_recomputed
    ]
    return sorted(recomputed, key=saved, reverse=True)


def _needed_bytes(assignment: Assignment, prediction: Prediction, profile: CostProfile) -> _Needs:
    """Return for each layer the bytes that its activations need on each device, if kept.

    Each entry has the device, these bytes, and the bytes of the activations in the backward pass of
    the layer, which recomputation needs too.
    """
    model = profile.model
    last_barrier = model.last_barrier if step_has_barriers(assignment, model) else -1
    needs: dict[int, list[tuple[int, float, float]]] = {k: [] for k in range(len(model.layers))}
    for replica, times in zip(assignment.replicas, prediction.timelines, strict=True):
        live = (replica.in_flight,) if times is None else times.peak_live
        for span, alive in zip(replica.spans, live, strict=True):
            for index in span.layers:
                kept = model.layers[index].activation_bytes - entering_bytes(model, index)
                count = replica.num_micro_batches if index <= last_barrier else alive
                size = replica.micro_batch
                anyway = model.layers[index].activation_bytes * size
                needs[index].append((span.device, kept * count * size, anyway))
    return needs


def _left(prediction: Prediction, profile: CostProfile) -> dict[int, float]:
    """Return the free bytes of the devices with a memory limit."""
    limits = [device.memory_bytes for device in profile.cluster.devices]
    return {
        device: limit - needed.total
        for device, needed in prediction.memory.items()
        if device >= 0 and (limit := limits[device]) is not None
    }


def _recompute_seconds(index: int, assignment: Assignment, profile: CostProfile) -> float:
    """Return the seconds that recomputing a layer takes, in the slowest replica."""
    return max(
        replica.num_micro_batches
        * profile.times[profile.cluster.devices[device].type][index].forward(replica.micro_batch)
        for replica, device in _holders(index, assignment)
    )


def _holders(index: int, assignment: Assignment) -> Iterator[tuple[ReplicaAssignment, int]]:
    for replica in assignment.replicas:
        for span in replica.spans:
            if span.first <= index < span.end:
                yield replica, span.device


def _unlike(indices: Sequence[int], assignment: Assignment, profile: CostProfile) -> list[int]:
    """Return the layers, of those with the same costs on the same devices only the first."""
    first: dict[object, int] = {}
    for index in indices:
        layer = dataclasses.replace(profile.model.layers[index], name="")
        devices = tuple(device for _, device in _holders(index, assignment))
        times = tuple(of_type[index] for of_type in profile.times.values())
        read = entering_bytes(profile.model, index)
        first.setdefault((layer, devices, times, read), index)
    return list(first.values())


# Refinement of the best plans, once devices, cuts and shares are chosen.
#
# ::
#
#     recomputed layers         as few as memory requires              `recomputing`
#     zero bubble               plans that consist of pipelines        `pipelining`
#     interleaved stages        plans of a single pipeline             `pipelining`
#
# Each starts from the best plans that fit, and from those that would be the best with unlimited
# memory. For few devices a local search follows, as for all plans.

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
    """Start of a refinement."""

    seconds: float  # Seconds of a step, by the formula for pipelines
    grouping: Grouping  # Devices of each replica
    assignment: Assignment  # Layers that each device computes and owns
    # Whether it was found without memory limits, and no plan that fits is as fast
    lacks_memory: bool = False

    @property
    def has_stages(self) -> bool:
        """Whether every replica is a pipeline."""
        return all(len(replica.spans) > 1 for replica in self.assignment.replicas)


def refine(
    starts: Sequence[Start], evaluator: PlanEvaluator, least_seconds: float, *, host: bool
) -> list[Candidate]:
    """Return plans with other schedules, and with fewer recomputed layers."""
    refinement = _Refinement(evaluator, least_seconds, host=host)
    return [
        *refinement.recomputed(starts),
        *refinement.rescheduled(starts),
        *refinement.interleaved(starts),
    ]


_Tried = tuple[float, Grouping, Assignment]


class _Refinement:
    """Refinement of several plans."""

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
    """Search for the fewest layers to recompute, with the seconds of a step."""

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
