"""Candidates of the search: an assignment with its prediction, their rank, and better ones nearby.

The formula that the search uses for cuts and shares approximates the timeline. `polish` and `recut`
begin with the result of the formula, and let the timeline decide. `refine` begins with the best
plans that recompute all layers, and with those that would be the best with unlimited memory, and
recomputes as few layers as the memory of the devices requires::

    all recomputed     | a b c d e |    free memory on each device
    kept instead       |   b   d   |    the most seconds saved per byte

Greedily stop recomputing layers, ordered by the seconds saved per fraction of free memory that
their activations fill, on the device where that fraction is largest. The estimate adds these bytes
at every moment of the step, so no device runs out of memory. For few devices a local search
follows, as for all plans.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evener.plan.profile import CostProfile
from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    holders_of,
    spans_of,
    spread_owners,
)
from evener.planner.groups import MOST_FOR_ALL, Grouping, first_of_each, is_over_machines
from evener.planner.memory import entering_bytes, shortages
from evener.planner.prediction import Prediction, predict, recomputed_layers
from evener.planner.step_time import step_has_barriers

_MOST_CUTS, _MOST_RECUTS = 3000, 8
_MOST_CHANGES = 12
MOST_GAIN = 1.5
"""Largest slowdown of a plan that is still refined."""
_MOST_STARTS, _MOST_STARTS_OF_MANY = 8, 2
_PROMISING = 1.15
"""Largest slowdown of a plan that the local search still tries to improve."""
_MOST_TIMES = 4
"""Most repetitions of each kind of change."""
_MOST_TRIED, _MOST_SWAPS = 4, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Choices that the search may make.

    Args:
        num_micro_batches: Numbers of micro-batches to try.
        recompute: Whether activations may be recomputed.
        host: Whether the host may own variables; ignored if the CPU is one of the devices.
        simpler_within: Slowdown, as a fraction, accepted for a plan without one of micro-batches,
            recomputation, or owners other than the engine's. Measured times are not exact enough
            to distinguish such plans.
        noise: Fraction of the step time within which two plans count as equally fast: the simpler
            one is chosen, of one device, even shares, uneven shares and a pipeline.
    """

    num_micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    recompute: bool = True
    host: bool = True
    simpler_within: float = 0.02
    noise: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    grouping: Grouping
    assignment: Assignment
    prediction: Prediction
    shortages: tuple[tuple[int, int], ...]

    @property
    def fits(self) -> bool:
        return not self.shortages


class PlanEvaluator:
    """Evaluator of plans: predicts and ranks them, and looks for better ones nearby."""

    def __init__(self, profile: CostProfile, choices: Choices) -> None:
        self.profile = profile
        self.choices = choices

    def candidate(self, assignment: Assignment, grouping: Grouping | None = None) -> Candidate:
        prediction = predict(assignment, self.profile)
        return Candidate(
            grouping=grouping or tuple(replica.devices for replica in assignment.replicas),
            assignment=assignment,
            prediction=prediction,
            shortages=tuple(shortages(prediction.memory, self.profile.cluster)),
        )

    def rank(self, candidate: Candidate) -> tuple[float, int]:
        """Return the sort key of a candidate, lower for better ones: seconds, then devices."""
        return self.weighed(candidate), sum(map(len, candidate.grouping))

    def seconds(self, assignment: Assignment) -> float:
        """Return the weighed seconds of a step, as in `rank`; infinite if it does not fit."""
        candidate = self.candidate(assignment)
        return self.weighed(candidate) if candidate.fits else math.inf

    def weighed(self, candidate: Candidate) -> float:
        """Return the seconds of a step, plus a fraction for everything that is not simple."""
        layers, cluster = self.profile.model.layers, self.profile.cluster
        assignment = candidate.assignment
        less_simple = [
            HOST_OWNER in assignment.owners,
            assignment.owners != spread_owners(layers, assignment.replicas, cluster),
            any(assignment.recompute),
            assignment.is_split_in_time,
        ]
        return candidate.prediction.step_seconds * (
            1 + self.choices.simpler_within * sum(less_simple)
        )

    def polished(
        self,
        grouping: Grouping,
        assignment: Assignment,
        *,
        host: bool,
        seconds: Callable[[Assignment], float] | None = None,
    ) -> Assignment:
        """Return an assignment that no small change makes faster, by ``seconds``."""
        layers, cluster = self.profile.model.layers, self.profile.cluster
        spread = None
        if is_over_machines(grouping, cluster):
            spread = functools.partial(spread_owners, layers, cluster=cluster)
        recut_plan = functools.partial(recut, recompute=assignment.recompute, profile=self.profile)
        return polish(
            assignment,
            seconds or self.seconds,
            self.choices.num_micro_batches,
            recut=functools.cache(recut_plan),
            host=host,
            spread=spread,
        )


Recut = Callable[[ReplicaAssignment], Sequence[ReplicaAssignment]]
"""Function that returns a replica with other cuts; equally many for replicas that are alike."""


def polish(
    assignment: Assignment,
    seconds: Callable[[Assignment], float],
    counts: Sequence[int],
    *,
    recut: Recut = lambda _: (),
    host: bool,
    spread: Callable[[Sequence[ReplicaAssignment]], tuple[int, ...]] | None = None,
) -> Assignment:
    best, least = assignment, seconds(assignment)
    for _ in range(_MOST_CHANGES):
        changed = list(_with_other_replicas(best, counts, recut))
        if spread is None:
            holders = holders_of(best.replicas, len(best.owners))
            for layer, (owner, devices) in enumerate(zip(best.owners, holders, strict=True)):
                for other in (*devices, HOST_OWNER) if host else devices:
                    if other != owner:
                        owners = (*best.owners[:layer], other, *best.owners[layer + 1 :])
                        changed.append(dataclasses.replace(best, owners=owners))
        else:
            changed = [
                dataclasses.replace(candidate, owners=spread(candidate.replicas))
                for candidate in changed
            ]
        tried = [(seconds(candidate), candidate) for candidate in changed]
        faster = min(tried, key=lambda timed: timed[0], default=(least, best))
        if faster[0] >= least * (1 - 1e-6):
            return best
        least, best = faster
    return best


def _with_other_replicas(
    assignment: Assignment, counts: Sequence[int], recut: Recut
) -> Iterator[Assignment]:
    def replace(changed: dict[int, ReplicaAssignment]) -> Assignment:
        """Replace replicas; the owner of a moved layer moves with it."""
        owners = list(assignment.owners)
        for index, after in changed.items():
            before = [s.device for s in replicas[index].spans for _ in s.layers]
            for layer, device in enumerate(s.device for s in after.spans for _ in s.layers):
                if owners[layer] == before[layer]:
                    owners[layer] = device
        all_replicas = tuple(changed.get(k, replica) for k, replica in enumerate(replicas))
        return dataclasses.replace(assignment, replicas=all_replicas, owners=tuple(owners))

    replicas = assignment.replicas
    alike: dict[object, list[int]] = defaultdict(list)
    for index, replica in enumerate(replicas):
        ends = tuple(span.end for span in replica.spans)
        alike[replica.samples, replica.num_micro_batches, ends].append(index)
        for other in _other_shapes(replica, counts, recut):
            yield replace({index: other})
    # If replicas are alike, the step is faster only if all of them are.
    for indices in alike.values():
        if len(indices) > 1:
            ways = (_other_shapes(replicas[index], counts, recut) for index in indices)
            for others in zip(*ways, strict=True):
                yield replace(dict(zip(indices, others, strict=True)))
    for giver, taker in itertools.permutations(range(len(replicas)), 2):
        samples = replicas[giver].samples - 1
        if samples:
            less = replicas[giver].resized(samples)
            more = replicas[taker].resized(replicas[taker].samples + 1)
            # One more sample may pay off only with more micro-batches.
            for other in (more, *_in_other_counts(more, _nearest(more, counts))):
                yield replace({giver: less, taker: other})


def _other_shapes(
    replica: ReplicaAssignment, counts: Sequence[int], recut: Recut
) -> Iterator[ReplicaAssignment]:
    yield from _in_other_counts(replica, counts)
    spans = replica.spans
    for index, step in itertools.product(range(len(spans) - 1), (-1, 1)):
        before, after = spans[index], spans[index + 1]
        cut = before.end + step
        if before.first < cut < after.end:
            moved = (Span(before.device, before.first, cut), Span(after.device, cut, after.end))
            yield dataclasses.replace(replica, spans=(*spans[:index], *moved, *spans[index + 2 :]))
    # The best cuts depend on the number of micro-batches.
    for variant in (replica, *_in_other_counts(replica, _nearest(replica, counts))):
        yield from recut(variant)


def _in_other_counts(
    replica: ReplicaAssignment, counts: Sequence[int]
) -> Iterator[ReplicaAssignment]:
    for count in counts:
        if count <= replica.samples and count != replica.num_micro_batches:
            yield replica.in_micro_batches(count)


def _nearest(replica: ReplicaAssignment, counts: Sequence[int]) -> list[int]:
    """Return the next smaller and the next larger number of micro-batches."""
    now = replica.num_micro_batches
    lower = max((count for count in counts if count < now), default=now)
    higher = min((count for count in counts if count > now), default=now)
    return sorted({lower, higher})


def recut(
    replica: ReplicaAssignment, recompute: Sequence[bool], profile: CostProfile
) -> list[ReplicaAssignment]:
    """Return a pipeline with other cuts, the best estimate first; none for long models.

    The formula that the search for cuts minimizes, sum + (m - 1) times the longest stage, ignores
    the position of the longest stage. The first stage can run further forward passes while it waits
    for its first gradient; the last one cannot::

        stage 0   F0 F1 F2 .. B0 F3 B1 ...      a step takes, for each stage k, at least
        stage 1      F0 B0 F1 B1 ...                m t(k)                       its own work
                                                  + what the stages before take  until it begins
                                                  + what the stages behind take, less the forward
                                                    passes that it has to do meanwhile
    """
    spans, num_layers, size = replica.spans, len(recompute), replica.micro_batch
    if len(spans) < 2 or math.comb(num_layers - 1, len(spans) - 1) > _MOST_CUTS:
        return []
    # Seconds of the first k layers on the device of each stage, for each k.
    passes: list[tuple[list[float], list[float]]] = []
    for span in spans:
        times = profile.times[profile.cluster.devices[span.device].type]
        forward = (layer.forward(size) for layer in times)
        backward = (
            layer.backward_seconds(size, recompute=is_recomputed, separate=True)
            for layer, is_recomputed in zip(times, recompute, strict=True)
        )
        forward_sums, backward_sums = (
            list(itertools.accumulate(seconds, initial=0.0)) for seconds in (forward, backward)
        )
        passes.append((forward_sums, backward_sums))
    # Seconds of a micro-batch between two stages, for a cut behind each layer.
    links = [
        [link.seconds(layer.boundary_bytes * size) for layer in profile.model.layers]
        for link in itertools.starmap(profile.cluster.link, itertools.pairwise(replica.devices))
    ]
    estimates: list[tuple[float, tuple[int, ...]]] = []
    for inner in itertools.combinations(range(1, num_layers), len(spans) - 1):
        cuts = (0, *inner, num_layers)
        stages = [
            (forward[end] - forward[begin], backward[end] - backward[begin])
            for (forward, backward), (begin, end) in zip(
                passes, itertools.pairwise(cuts), strict=True
            )
        ]
        sent = [of_cut[cut - 1] for of_cut, cut in zip(links, inner, strict=True)]
        estimates.append((_estimate(stages, sent, replica.num_micro_batches), cuts))
    return [
        dataclasses.replace(replica, spans=spans_of(replica.devices, cuts))
        for _, cuts in heapq.nsmallest(_MOST_RECUTS, estimates)
    ]


def _estimate(stages: Sequence[tuple[float, float]], sent: Sequence[float], count: int) -> float:
    """Return the estimated seconds of a step, as in `recut`.

    >>> _estimate([(3.0, 6.0), (1.0, 2.0)], [0.0], 4), _estimate([(1.0, 2.0), (3.0, 6.0)], [0.0], 4)
    (36.0, 39.0)
    """
    whole = [forward + backward for forward, backward in stages]
    # Each tensor is sent, and its gradient comes back.
    behind = sum(whole) + 2 * sum(sent)
    before = longest = 0.0
    for k, (forward, _) in enumerate(stages):
        behind -= whole[k]
        hidden = min(count - 1, len(stages) - 1 - k) * forward
        longest = max(longest, before + count * whole[k] + max(0.0, behind - hidden))
        if k < len(sent):
            behind -= 2 * sent[k]
            before += whole[k] + 2 * sent[k]
    return longest


Needs = Mapping[int, Sequence[tuple[int, float, float]]]
"""By layer, if its activations are kept: devices with a limit, the bytes that they need there, and
the bytes of the backward pass of the layer, which are there in any case."""


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
    layers = evaluator.profile.model.layers
    few = len(evaluator.profile.cluster.devices) <= MOST_FOR_ALL
    most = _MOST_STARTS if few else _MOST_STARTS_OF_MANY

    def best(chosen: Iterable[Start]) -> list[Start]:
        promising = (start for start in chosen if start.seconds < least_seconds * MOST_GAIN)
        return distinct(sorted(promising, key=lambda start: start.seconds))[:most]

    def distinct(starts: Iterable[Start]) -> list[Start]:
        """Leave out starts that differ only in recomputed layers, which are chosen anew."""
        return [*first_of_each(starts, lambda s: (s.assignment.replicas, s.assignment.owners))]

    lacking = best(start for start in starts if start.lacks_memory)
    recomputed = best(start for start in starts if any(start.assignment.recompute))
    tried: list[Start] = []
    for start in distinct((*lacking, *recomputed)):
        fewest = _FewestRecomputed(evaluator, least_seconds * _PROMISING)
        # The same replicas, then with increasing numbers of micro-batches.
        given = start.assignment.replicas
        least = min(replica.num_micro_batches for replica in given)
        more = [n for n in evaluator.choices.num_micro_batches if few and n > least]
        for count in (0, *more):
            replicas = given
            if count:
                replicas = tuple(r.in_micro_batches(max(count, r.num_micro_batches)) for r in given)
            found: list[tuple[float, Assignment]] = []
            spread = spread_owners(layers, replicas, evaluator.profile.cluster)
            ways = [spread]
            if few and EACH_MACHINE not in spread:
                ways = [start.assignment.owners, spread]
                ways += [(HOST_OWNER,) * len(layers)] if host else []
            for owners in dict.fromkeys(ways):
                assignment = dataclasses.replace(start.assignment, replicas=replicas, owners=owners)
                seconds, kept = fewest.find(assignment)
                if kept is not None:
                    found.append((seconds, kept))
                    if not any(kept.recompute):
                        break
            if found:
                seconds, kept = min(found, key=lambda plan: plan[0])
                tried.append(dataclasses.replace(start, seconds=seconds, assignment=kept))
                break

    def used(start: Start) -> object:
        """Return the devices with samples, and the owners."""
        devices = tuple(replica.devices for replica in start.assignment.replicas)
        return devices, start.assignment.owners

    tried = [start for start in tried if start.seconds < least_seconds * _PROMISING]
    fastest = first_of_each(sorted(tried, key=lambda start: start.seconds), used)
    refined: list[Candidate] = []
    for start in itertools.islice(fastest, most):
        grouping, better = start.grouping, start.assignment
        if few:
            # A local search, and exchanges of recomputed layers.
            fewest = _FewestRecomputed(evaluator)
            changed = evaluator.polished(
                grouping, better, host=host, seconds=lambda plan, f=fewest: f.find(plan)[0]
            )
            better = fewest.find(changed)[1]
            assert better is not None, "the search starts from a plan that fits"
            least = evaluator.seconds(better)
            for _ in range(_MOST_TIMES):
                others = [(evaluator.seconds(other), other) for other in swaps(better, evaluator)]
                took, other = min(others, key=lambda plan: plan[0], default=(math.inf, better))
                if took >= least * (1 - 1e-6):
                    break
                least, better = took, other
            least_seconds = min(least_seconds, least)
        elif start.seconds >= least_seconds:
            continue
        refined.append(evaluator.candidate(better, grouping))
    return refined


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
        none = evaluator.candidate(
            dataclasses.replace(assignment, recompute=(False,) * len(assignment.recompute))
        )
        seconds = evaluator.weighed(none)
        if none.fits:
            return seconds, none.assignment
        # Recomputation never makes a step faster.
        recompute = recomputed_layers(evaluator.profile.model)
        if not evaluator.choices.recompute or seconds >= self._least or not any(recompute):
            return math.inf, None
        every = evaluator.candidate(dataclasses.replace(assignment, recompute=recompute))
        if not every.fits:
            return math.inf, None
        fewer = keep_activations(every, evaluator)
        return evaluator.weighed(fewer), fewer.assignment


def keep_activations(best: Candidate, evaluator: PlanEvaluator) -> Candidate:
    for _ in range(_MOST_TIMES):
        left, needs, ranked = _activations(best, evaluator)
        kept: set[int] = set()
        for index in ranked:
            if all(more <= left[device] for device, more, _ in needs[index]):
                kept.add(index)
                for device, more, _ in needs[index]:
                    left[device] -= more
        fewer = _without(best.assignment, kept, evaluator) if kept else None
        if fewer is None:
            break
        best = fewer
    for _ in range(_MOST_TIMES):
        left, needs, ranked = _activations(best, evaluator)
        # These fit if the peak is in their own backward pass, where their activations are anyway.
        nearly = (
            index
            for index in _unlike(ranked, best.assignment, evaluator)
            if all(more - anyway <= left[device] for device, more, anyway in needs[index])
        )
        tried = itertools.islice(nearly, _MOST_TRIED)
        ways = (_without(best.assignment, {index}, evaluator) for index in tried)
        fewer = next((way for way in ways if way is not None), None)
        if fewer is None:
            break
        best = fewer
    return best


def _without(
    assignment: Assignment, kept: Collection[int], evaluator: PlanEvaluator
) -> Candidate | None:
    """Return a plan that keeps the activations of some layers; None if it does not fit."""
    recompute = tuple(
        is_recomputed and index not in kept
        for index, is_recomputed in enumerate(assignment.recompute)
    )
    if not any(recompute):
        return None
    fewer = evaluator.candidate(dataclasses.replace(assignment, recompute=recompute))
    return fewer if fewer.fits else None


def _activations(
    candidate: Candidate, evaluator: PlanEvaluator
) -> tuple[dict[int, float], Needs, list[int]]:
    """Return free bytes, the needs of kept activations, and the layers, the most worth first."""
    profile, assignment, prediction = evaluator.profile, candidate.assignment, candidate.prediction
    model, devices = profile.model, profile.cluster.devices
    left: dict[int, float] = {
        device: limit - needed.total
        for device, needed in prediction.memory.items()
        if device >= 0 and (limit := devices[device].memory_bytes) is not None
    }
    last_barrier = model.last_barrier if step_has_barriers(assignment, model) else -1
    needs: dict[int, list[tuple[int, float, float]]] = {k: [] for k in range(len(model.layers))}
    for replica, times in zip(assignment.replicas, prediction.replicas, strict=True):
        live = times.timeline.peak_live if times.timeline else (replica.in_flight,)
        for span, alive in zip(replica.spans, live, strict=True):
            for index in span.layers if span.device in left else ():
                kept = model.layers[index].activation_bytes - entering_bytes(model, index)
                count = replica.num_micro_batches if index <= last_barrier else alive
                size = replica.micro_batch
                anyway = model.layers[index].activation_bytes * size
                needs[index].append((span.device, kept * count * size, anyway))

    def worth(index: int) -> float:
        filled = max(
            (more / max(left[device], 1.0) for device, more, _ in needs[index]), default=0.0
        )
        # Seconds that recomputing the layer takes, in the slowest replica.
        seconds = max(
            replica.num_micro_batches
            * profile.times[devices[device].type][index].forward(replica.micro_batch)
            for replica, device in _holders(index, assignment)
        )
        return seconds / max(filled, 1e-12)

    recomputed = [
        index for index, is_recomputed in enumerate(assignment.recompute) if is_recomputed
    ]
    return left, needs, sorted(recomputed, key=worth, reverse=True)


def swaps(assignment: Assignment, evaluator: PlanEvaluator) -> Iterator[Assignment]:
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
        itertools.product(less, more), itertools.product(less, itertools.combinations(instead, 2))
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

    def costs(index: int) -> object:
        layer = dataclasses.replace(profile.model.layers[index], name="")
        devices = tuple(device for _, device in _holders(index, assignment))
        times = tuple(of_type[index] for of_type in profile.times.values())
        return layer, devices, times, entering_bytes(profile.model, index)

    return [*first_of_each(indices, costs)]
