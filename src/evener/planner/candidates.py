"""Candidates of the search: an assignment with its prediction, their rank, and better ones nearby.

The formula that the search uses for cuts and shares approximates the timeline. `polish` and `recut`
begin with the result of the formula, and let the timeline decide.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from evener.plan.profile import CostProfile
from evener.planner.assignment import (
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    holders_of,
    spread_owners,
)
from evener.planner.groups import Grouping, is_over_machines
from evener.planner.memory import shortages
from evener.planner.prediction import Prediction, predict

_MOST_CUTS = 3000
_MOST_TRIED = 8
_MOST_CHANGES = 12


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
    """Candidate plan of the search."""

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

    def predict(self, assignment: Assignment) -> Prediction:
        return predict(assignment, self.profile)

    def fits(self, prediction: Prediction) -> bool:
        return not any(shortages(prediction.memory, self.profile.cluster))

    def candidate(self, grouping: Grouping, assignment: Assignment) -> Candidate:
        prediction = self.predict(assignment)
        return Candidate(
            grouping=grouping,
            assignment=assignment,
            prediction=prediction,
            shortages=tuple(shortages(prediction.memory, self.profile.cluster)),
        )

    def rank(self, candidate: Candidate) -> tuple[float, int]:
        """Return the sort key of a candidate, lower for better ones: seconds, then devices."""
        num_devices = sum(map(len, candidate.grouping))
        return self.weighed(candidate.assignment, candidate.prediction), num_devices

    def seconds(self, assignment: Assignment) -> float:
        """Return the weighed seconds of a step, as in `rank`; infinite if it does not fit."""
        prediction = self.predict(assignment)
        return self.weighed(assignment, prediction) if self.fits(prediction) else math.inf

    def weighed(self, assignment: Assignment, prediction: Prediction) -> float:
        """Return the seconds of a step, plus a fraction for everything that is not simple."""
        layers, cluster = self.profile.model.layers, self.profile.cluster
        less_simple = [
            HOST_OWNER in assignment.owners,
            assignment.owners != spread_owners(layers, assignment.replicas, cluster),
            any(assignment.recompute),
            any(len(r.spans) == 1 and r.num_micro_batches > 1 for r in assignment.replicas),
        ]
        return prediction.step_seconds * (1 + self.choices.simpler_within * sum(less_simple))

    def polished(
        self,
        grouping: Grouping,
        assignment: Assignment,
        counts: Sequence[int],
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
            counts,
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
    """Return an assignment that no small change makes faster."""
    best, least = assignment, seconds(assignment)
    for _ in range(_MOST_CHANGES):
        changed = _with_other_replicas(best, counts, recut)
        if spread is None:
            changed = itertools.chain(changed, _with_other_owners(best, host=host))
        else:
            changed = (
                dataclasses.replace(candidate, owners=spread(candidate.replicas))
                for candidate in changed
            )
        tried = [(seconds(candidate), candidate) for candidate in changed]
        faster = min(tried, key=lambda timed: timed[0], default=(least, best))
        if faster[0] >= least * (1 - 1e-6):
            return best
        least, best = faster
    return best


def _with_other_owners(assignment: Assignment, *, host: bool) -> Iterator[Assignment]:
    holders = holders_of(assignment.replicas, len(assignment.owners))
    for layer, (owner, devices) in enumerate(zip(assignment.owners, holders, strict=True)):
        for other in (*devices, HOST_OWNER) if host else devices:
            if other != owner:
                owners = (*assignment.owners[:layer], other, *assignment.owners[layer + 1 :])
                yield dataclasses.replace(assignment, owners=owners)


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
            less = _resized(replicas[giver], samples)
            more = _resized(replicas[taker], replicas[taker].samples + 1)
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


def _resized(replica: ReplicaAssignment, samples: int) -> ReplicaAssignment:
    count = min(replica.num_micro_batches, samples)
    return dataclasses.replace(
        replica,
        samples=samples,
        num_micro_batches=count,
        in_flight=min(replica.in_flight, count),
    )


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
        passes.append(
            (
                list(itertools.accumulate(forward, initial=0.0)),
                list(itertools.accumulate(backward, initial=0.0)),
            )
        )
    # Seconds of a micro-batch between two stages, for a cut behind each layer.
    links = [
        [
            profile.cluster.link(source.device, target.device).seconds(layer.boundary_bytes * size)
            if source.device != target.device
            else 0.0
            for layer in profile.model.layers
        ]
        for source, target in itertools.pairwise(spans)
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
        dataclasses.replace(
            replica,
            spans=tuple(
                Span(span.device, *ends)
                for span, ends in zip(spans, itertools.pairwise(cuts), strict=True)
            ),
        )
        for _, cuts in heapq.nsmallest(_MOST_TRIED, estimates)
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
