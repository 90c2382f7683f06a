"""Refinement of the best plans, once devices, cuts and shares are chosen: the layers to recompute.

Each refinement starts from the best plans that recompute all layers, and from those that would be
the best with unlimited memory. As few layers are recomputed as the memory of the devices requires::

    all recomputed     | a b c d e |    free memory on each device
    kept instead       |   b   d   |    the most seconds saved per byte

Greedily stop recomputing layers, ordered by the seconds saved per fraction of free memory that
their activations fill, on the device where that fraction is largest. The estimate adds these bytes
at every moment of the step, so no device runs out of memory. For few devices a local search
follows, as for all plans.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    spread_owners,
)
from evener.planner.candidates import Candidate, PlanEvaluator
from evener.planner.groups import MOST_FOR_ALL, Grouping
from evener.planner.memory import entering_bytes
from evener.planner.prediction import Prediction, recomputed_layers
from evener.planner.step_time import step_has_barriers

MOST_GAIN = 1.5
"""Largest slowdown of a plan that is still refined."""

_MOST_STARTS, _MOST_STARTS_OF_MANY = 8, 2
_PROMISING = 1.15
"""Largest slowdown of a plan that the local search still tries to improve."""

_MOST_TIMES = 4
"""Most repetitions of each kind of change."""

_MOST_TRIED, _MOST_SWAPS = 4, 100

Needs = Mapping[int, Sequence[tuple[int, float, float]]]
"""By layer, if its activations are kept: devices, the bytes that they need there, and the bytes of
the backward pass of the layer, which are there in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    seconds: float  # Seconds of a step, by the formula for pipelines.
    grouping: Grouping
    assignment: Assignment
    # Whether it was found without memory limits, and no plan that fits is as fast.
    lacks_memory: bool = False


def refine(
    starts: Sequence[Start], evaluator: PlanEvaluator, least_seconds: float, *, host: bool
) -> list[Candidate]:
    """Return plans with as few recomputed layers as memory allows."""
    if not evaluator.choices.recompute:
        return []
    few = len(evaluator.profile.cluster.devices) <= MOST_FOR_ALL
    most = _MOST_STARTS if few else _MOST_STARTS_OF_MANY

    def best(chosen: Iterable[Start]) -> list[Start]:
        promising = (start for start in chosen if start.seconds < least_seconds * MOST_GAIN)
        return _distinct(sorted(promising, key=lambda start: start.seconds))[:most]

    lacking = best(start for start in starts if start.lacks_memory)
    recomputed = best(start for start in starts if any(start.assignment.recompute))
    tried: list[tuple[float, Grouping, Assignment]] = []
    for start in _distinct((*lacking, *recomputed)):
        fewest = _FewestRecomputed(evaluator, least_seconds * _PROMISING)
        for replicas in _micro_batches_to_try(start.assignment.replicas, evaluator, few=few):
            found: list[tuple[float, Assignment]] = []
            for owners in _owners_to_try(start, replicas, evaluator, few=few, host=host):
                assignment = dataclasses.replace(start.assignment, replicas=replicas, owners=owners)
                seconds, least = fewest.find(assignment)
                if least is not None:
                    found.append((seconds, least))
                    if not any(least.recompute):
                        break
            if found:
                seconds, least = min(found, key=lambda plan: plan[0])
                tried.append((seconds, start.grouping, least))
                break

    # The fastest plan for each combination of devices with samples and of owners.
    first: dict[object, tuple[float, Grouping, Assignment]] = {}
    for plan in sorted(tried, key=lambda plan: plan[0]):
        if plan[0] < least_seconds * _PROMISING:
            devices = tuple(replica.devices for replica in plan[2].replicas)
            first.setdefault((devices, plan[2].owners), plan)
    refined: list[Candidate] = []
    for seconds, grouping, assignment in list(first.values())[:most]:
        if few:
            better = _improved(grouping, assignment, evaluator, host=host)
            least_seconds = min(least_seconds, evaluator.seconds(better))
            refined.append(evaluator.candidate(grouping, better))
        elif seconds < least_seconds:
            refined.append(evaluator.candidate(grouping, assignment))
    return refined


def _distinct(starts: Iterable[Start]) -> list[Start]:
    """Return starts without those that differ only in recomputed layers, which are chosen anew."""
    first: dict[object, Start] = {}
    for start in starts:
        first.setdefault((start.assignment.replicas, start.assignment.owners), start)
    return list(first.values())


def _micro_batches_to_try(
    replicas: tuple[ReplicaAssignment, ...], evaluator: PlanEvaluator, *, few: bool
) -> Iterator[tuple[ReplicaAssignment, ...]]:
    """Yield replicas, then the same with increasing numbers of micro-batches."""
    yield replicas
    least = min(replica.num_micro_batches for replica in replicas)
    for count in evaluator.choices.num_micro_batches if few else ():
        if count > least:
            yield tuple(
                replica.in_micro_batches(max(count, replica.num_micro_batches))
                for replica in replicas
            )


def _owners_to_try(
    start: Start,
    replicas: Sequence[ReplicaAssignment],
    evaluator: PlanEvaluator,
    *,
    few: bool,
    host: bool,
) -> Iterable[tuple[int, ...]]:
    layers, cluster = evaluator.profile.model.layers, evaluator.profile.cluster
    spread = spread_owners(layers, replicas, cluster)
    if not few or EACH_MACHINE in spread:
        return [spread]
    ways = [start.assignment.owners, spread]
    if host:
        ways.append((HOST_OWNER,) * len(layers))
    return dict.fromkeys(ways)


def _improved(
    grouping: Grouping, assignment: Assignment, evaluator: PlanEvaluator, *, host: bool
) -> Assignment:
    fewest = _FewestRecomputed(evaluator)
    counts = evaluator.choices.num_micro_batches
    changed = evaluator.polished(
        grouping, assignment, counts, host=host, seconds=lambda plan: fewest.find(plan)[0]
    )
    better = fewest.find(changed)[1]
    assert better is not None, "the search starts from a plan that fits"
    least = evaluator.seconds(better)
    for _ in range(_MOST_TIMES):
        others = [(evaluator.seconds(other), other) for other in swaps(better, evaluator)]
        seconds, other = min(others, key=lambda plan: plan[0], default=(math.inf, better))
        if seconds >= least * (1 - 1e-6):
            break
        least, better = seconds, other
    return better


class _FewestRecomputed:
    """Search for the fewest layers to recompute, in plans no slower than the fastest so far."""

    def __init__(self, evaluator: PlanEvaluator, most_seconds: float = math.inf) -> None:
        self._evaluator = evaluator
        self._known: dict[object, tuple[float, Assignment | None]] = {}
        self._least = most_seconds

    def find(self, assignment: Assignment) -> tuple[float, Assignment | None]:
        """Return the seconds of a step and the plan; infinity and None if it does not fit."""
        key = assignment.replicas, assignment.owners
        if key not in self._known:
            self._known[key] = self._find(assignment)
            self._least = min(self._least, self._known[key][0])
        return self._known[key]

    def _find(self, assignment: Assignment) -> tuple[float, Assignment | None]:
        evaluator = self._evaluator
        none = dataclasses.replace(assignment, recompute=(False,) * len(assignment.recompute))
        prediction = evaluator.predict(none)
        seconds = evaluator.weighed(none, prediction)
        if evaluator.fits(prediction):
            return seconds, none
        # Recomputation never makes a step faster.
        every = dataclasses.replace(
            assignment, recompute=recomputed_layers(evaluator.profile.model)
        )
        if not evaluator.choices.recompute or seconds >= self._least or not any(every.recompute):
            return math.inf, None
        prediction = evaluator.predict(every)
        if not evaluator.fits(prediction):
            return math.inf, None
        fewer, prediction = keep_activations(every, prediction, evaluator)
        return evaluator.weighed(fewer, prediction), fewer


def keep_activations(
    assignment: Assignment, prediction: Prediction, evaluator: PlanEvaluator
) -> tuple[Assignment, Prediction]:
    """Return an assignment that fits and recomputes fewer layers, with its prediction."""
    for _ in range(_MOST_TIMES):
        left, needs, ranked = _activations(assignment, prediction, evaluator)
        kept: set[int] = set()
        for index in ranked:
            if all(more <= left[device] for device, more, _ in needs[index] if device in left):
                kept.add(index)
                for device, more, _ in needs[index]:
                    if device in left:
                        left[device] -= more
        fewer = _without(assignment, kept, evaluator) if kept else None
        if fewer is None:
            break
        assignment, prediction = fewer
    for _ in range(_MOST_TIMES):
        left, needs, ranked = _activations(assignment, prediction, evaluator)
        # These fit if the peak is in their own backward pass, where their activations are anyway.
        nearly = (
            index
            for index in _unlike(ranked, assignment, evaluator)
            if all(more - anyway <= left[d] for d, more, anyway in needs[index] if d in left)
        )
        ways = (_without(assignment, {k}, evaluator) for k in itertools.islice(nearly, _MOST_TRIED))
        fewer = next((way for way in ways if way is not None), None)
        if fewer is None:
            break
        assignment, prediction = fewer
    return assignment, prediction


def _without(
    assignment: Assignment, kept: Collection[int], evaluator: PlanEvaluator
) -> tuple[Assignment, Prediction] | None:
    """Return an assignment that keeps the activations of some layers; None if it does not fit."""
    recompute = tuple(
        is_recomputed and index not in kept
        for index, is_recomputed in enumerate(assignment.recompute)
    )
    if not any(recompute):
        return None
    fewer = dataclasses.replace(assignment, recompute=recompute)
    prediction = evaluator.predict(fewer)
    is_over = min(_free_bytes(prediction, evaluator).values(), default=0.0) < 0
    return None if is_over else (fewer, prediction)


def _activations(
    assignment: Assignment, prediction: Prediction, evaluator: PlanEvaluator
) -> tuple[dict[int, float], Needs, list[int]]:
    """Return free bytes, the needs of kept activations, and the layers, the most worth first."""
    profile = evaluator.profile
    model, left = profile.model, _free_bytes(prediction, evaluator)
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

    def worth(index: int) -> float:
        filled = max(
            (more / max(left[device], 1.0) for device, more, _ in needs[index] if device in left),
            default=0.0,
        )
        # Seconds that recomputing the layer takes, in the slowest replica.
        seconds = max(
            replica.num_micro_batches
            * profile.times[profile.cluster.devices[device].type][index].forward(
                replica.micro_batch
            )
            for replica, device in _holders(index, assignment)
        )
        return seconds / max(filled, 1e-12)

    recomputed = [
        index for index, is_recomputed in enumerate(assignment.recompute) if is_recomputed
    ]
    return left, needs, sorted(recomputed, key=worth, reverse=True)


def _free_bytes(prediction: Prediction, evaluator: PlanEvaluator) -> dict[int, float]:
    limits = [device.memory_bytes for device in evaluator.profile.cluster.devices]
    return {
        device: limit - needed.total
        for device, needed in prediction.memory.items()
        if device >= 0 and (limit := limits[device]) is not None
    }


def swaps(assignment: Assignment, evaluator: PlanEvaluator) -> Iterator[Assignment]:
    """Yield assignments that recompute one or two layers fewer, or others instead."""
    may_be = recomputed_layers(evaluator.profile.model)
    recompute = assignment.recompute
    indices = [k for k, is_recomputed in enumerate(recompute) if is_recomputed]
    recomputed = _unlike(indices, assignment, evaluator)
    # Of layers that are alike, two may be kept together.
    others = _unlike([k for k in indices if k not in recomputed], assignment, evaluator)
    pairs = itertools.combinations(sorted([*recomputed, *others]), 2)
    kept = [k for k, is_recomputed in enumerate(recompute) if not is_recomputed and may_be[k]]
    instead = _unlike(kept, assignment, evaluator)
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


def _holders(index: int, assignment: Assignment) -> Iterator[tuple[ReplicaAssignment, int]]:
    for replica in assignment.replicas:
        for span in replica.spans:
            if span.first <= index < span.end:
                yield replica, span.device


def _unlike(indices: Sequence[int], assignment: Assignment, evaluator: PlanEvaluator) -> list[int]:
    """Return the layers, of those with the same costs on the same devices only the first."""
    profile = evaluator.profile
    first: dict[object, int] = {}
    for index in indices:
        layer = dataclasses.replace(profile.model.layers[index], name="")
        devices = tuple(device for _, device in _holders(index, assignment))
        times = tuple(of_type[index] for of_type in profile.times.values())
        read = entering_bytes(profile.model, index)
        first.setdefault((layer, devices, times, read), index)
    return list(first.values())
