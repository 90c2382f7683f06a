"""Candidates of the search: an assignment with its prediction, made whole in samples and owners."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from evener.plan.parts import ScheduleName
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

# Other cuts of a pipeline, chosen by an estimate that is closer to its timeline.
#
# The formula that the search for cuts minimizes, sum + (m - 1) times the longest stage, ignores the
# position of the longest stage. The first stage can run further forward passes while it waits for
# its
# first gradient; the last one cannot::
#
#     stage 0   F0 F1 F2 .. B0 F3 B1 ...        a step takes, for each stage k, at least
#     stage 1      F0 B0 F1 B1 ...                  m t(k)                       its own work
#                                                 + what the stages before take  until it begins
#                                                 + what the stages behind take, less the forward
#                                                   passes that it has to do meanwhile
#
# For short models all cuts are estimated, and the best are returned.

_MOST_CUTS = 3000
_MOST_TRIED = 8


def recut(
    replica: ReplicaAssignment, recompute: Sequence[bool], profile: CostProfile
) -> list[ReplicaAssignment]:
    """Return a pipeline with other cuts, the best estimate first; none for long models."""
    spans, num_layers = replica.spans, len(recompute)
    if len(spans) < 2 or math.comb(num_layers - 1, len(spans) - 1) > _MOST_CUTS:
        return []
    passes = [_passes(span.device, replica.micro_batch, recompute, profile) for span in spans]
    links = [
        [_sent(source.device, target.device, cut, replica, profile) for cut in range(num_layers)]
        for source, target in itertools.pairwise(spans)
    ]
    found: list[tuple[float, tuple[int, ...]]] = []
    for inner in itertools.combinations(range(1, num_layers), len(spans) - 1):
        bounds = (0, *inner, num_layers)
        stages = [
            (forward[end] - forward[begin], backward[end] - backward[begin])
            for (forward, backward), (begin, end) in zip(
                passes, itertools.pairwise(bounds), strict=True
            )
        ]
        sent = [of_cut[cut] for of_cut, cut in zip(links, inner, strict=True)]
        found.append((_estimate(stages, sent, replica.num_micro_batches), bounds))
    return [
        dataclasses.replace(
            replica,
            spans=tuple(
                Span(span.device, *ends)
                for span, ends in zip(spans, itertools.pairwise(bounds), strict=True)
            ),
        )
        for _, bounds in heapq.nsmallest(_MOST_TRIED, found)
    ]


def _estimate(stages: Sequence[tuple[float, float]], sent: Sequence[float], count: int) -> float:
    """Return the estimated seconds of a step."""
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


def _passes(
    device: int, samples: float, recompute: Sequence[bool], profile: CostProfile
) -> tuple[list[float], list[float]]:
    """Return the cumulative forward and backward seconds of the layers."""
    times = profile.times[profile.cluster.devices[device].type]
    forward = (layer.forward(samples) for layer in times)
    backward = (
        layer.backward_seconds(samples, recompute=is_recomputed, separate=True)
        for layer, is_recomputed in zip(times, recompute, strict=True)
    )
    return _added(forward), _added(backward)


def _added(seconds: Iterator[float]) -> list[float]:
    return list(itertools.accumulate(seconds, initial=0.0))


def _sent(
    source: int, target: int, cut: int, replica: ReplicaAssignment, profile: CostProfile
) -> float:
    """Return the transfer seconds of a micro-batch between two devices at a cut."""
    if not cut or source == target:
        return 0.0
    num_bytes = profile.model.layers[cut - 1].boundary_bytes * replica.micro_batch
    return profile.cluster.link(source, target).seconds(num_bytes)


# Local search: small changes to a plan as long as they make it faster.
#
# The formula that the search uses for cuts and shares approximates the timeline: a pipeline with
# long
# transfers waits a little longer or shorter. Starting from the result of the formula, a layer moves
# to a neighbouring stage, a sample to another replica, a layer's variables to another owner, or the
# number of micro-batches changes; the timeline decides.

_MOST_CHANGES = 12


def polish(
    assignment: Assignment,
    seconds: Callable[[Assignment], float],
    num_micro_batches: Sequence[int],
    *,
    recut: Callable[[ReplicaAssignment], Sequence[ReplicaAssignment]] = lambda _: (),
    host: bool,
    spread: Callable[[Sequence[ReplicaAssignment]], tuple[int, ...]] | None = None,
) -> Assignment:
    """Return an assignment that no small change makes faster."""
    best, least = assignment, seconds(assignment)
    for _ in range(_MOST_CHANGES):
        changed = _changed(best, num_micro_batches, recut)
        if spread is None:
            changed = itertools.chain(changed, _other_owners(best, host=host))
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


def _changed(
    assignment: Assignment,
    counts: Sequence[int],
    recut: Callable[[ReplicaAssignment], Sequence[ReplicaAssignment]],
) -> Iterator[Assignment]:
    replicas = assignment.replicas
    alike: dict[object, list[int]] = defaultdict(list)
    for index, replica in enumerate(replicas):
        alike[_shape(replica)].append(index)
        for other in _others(replica, counts, recut):
            yield _with(assignment, {index: other})
    # If replicas are alike, the step is faster only if all of them are.
    for indices in alike.values():
        if len(indices) > 1:
            ways = (_others(replicas[index], counts, recut) for index in indices)
            for others in zip(*ways, strict=True):
                yield _with(assignment, dict(zip(indices, others, strict=True)))
    for giver, taker in itertools.permutations(range(len(replicas)), 2):
        samples = replicas[giver].samples - 1
        if samples:
            less = _resized(replicas[giver], samples)
            more = _resized(replicas[taker], replicas[taker].samples + 1)
            # One more sample may pay off only with more micro-batches.
            for other in itertools.chain([more], _nearest_counts(more, counts)):
                yield _with(assignment, {giver: less, taker: other})


def _others(
    replica: ReplicaAssignment,
    counts: Sequence[int],
    recut: Callable[[ReplicaAssignment], Sequence[ReplicaAssignment]],
) -> Iterator[ReplicaAssignment]:
    yield from _other_counts(replica, counts)
    yield from _other_cuts(replica)
    # The best cuts depend on the number of micro-batches.
    for variant in (replica, *_nearest_counts(replica, counts)):
        yield from recut(variant)


def _shape(replica: ReplicaAssignment) -> object:
    """Return a key of a replica without its devices."""
    return replica.samples, replica.num_micro_batches, tuple(span.end for span in replica.spans)


def _other_owners(assignment: Assignment, *, host: bool) -> Iterator[Assignment]:
    holders = holders_of(assignment.replicas, len(assignment.owners))
    for layer, (owner, devices) in enumerate(zip(assignment.owners, holders, strict=True)):
        for other in (*devices, HOST_OWNER) if host else devices:
            if other != owner:
                owners = (*assignment.owners[:layer], other, *assignment.owners[layer + 1 :])
                yield dataclasses.replace(assignment, owners=owners)


def _with(assignment: Assignment, changed: dict[int, ReplicaAssignment]) -> Assignment:
    """Return the assignment with replaced replicas; the owner of a moved layer moves with it."""
    replicas = tuple(changed.get(k, replica) for k, replica in enumerate(assignment.replicas))
    owners = list(assignment.owners)
    for index, after in changed.items():
        was, now = _devices(assignment.replicas[index]), _devices(after)
        for layer, (before, device) in enumerate(zip(was, now, strict=True)):
            if owners[layer] == before:
                owners[layer] = device
    return dataclasses.replace(assignment, replicas=replicas, owners=tuple(owners))


def _devices(replica: ReplicaAssignment) -> list[int]:
    return [span.device for span in replica.spans for _ in span.layers]


def _other_counts(replica: ReplicaAssignment, counts: Sequence[int]) -> Iterator[ReplicaAssignment]:
    for count in counts:
        if count <= replica.samples and count != replica.num_micro_batches:
            yield dataclasses.replace(
                replica, num_micro_batches=count, in_flight=min(len(replica.spans), count)
            )


def _nearest_counts(
    replica: ReplicaAssignment, counts: Sequence[int]
) -> Iterator[ReplicaAssignment]:
    """Yield the replica with the next smaller and the next larger number of micro-batches."""
    now = replica.num_micro_batches
    lower = max((count for count in counts if count < now), default=now)
    higher = min((count for count in counts if count > now), default=now)
    yield from _other_counts(replica, sorted({lower, higher}))


def _other_cuts(replica: ReplicaAssignment) -> Iterator[ReplicaAssignment]:
    spans = replica.spans
    for index, step in itertools.product(range(len(spans) - 1), (-1, 1)):
        before, after = spans[index], spans[index + 1]
        cut = before.end + step
        if before.first < cut < after.end:
            moved = (Span(before.device, before.first, cut), Span(after.device, cut, after.end))
            yield dataclasses.replace(replica, spans=(*spans[:index], *moved, *spans[index + 2 :]))


def _resized(replica: ReplicaAssignment, samples: int) -> ReplicaAssignment:
    count = min(replica.num_micro_batches, samples)
    return dataclasses.replace(
        replica,
        samples=samples,
        num_micro_batches=count,
        in_flight=min(replica.in_flight, count),
    )


# Candidate plans, and the evaluator that ranks them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Choices that the search may make.

    Args:
        num_micro_batches: Numbers of micro-batches to try; for interleaved stages, these times the
            number of devices, up to the greatest.
        recompute: Whether activations may be recomputed.
        host: Whether the host may own variables; ignored if the CPU is one of the devices.
        schedules: Schedules of pipelines to try besides ``"1f1b"``, which is always tried.
        most_rounds: Most stages per device in an interleaved pipeline.
        simpler_within: Slowdown, as a fraction, accepted for a plan without one of micro-batches,
            recomputation, another schedule, one more stage per device, or owners other than the
            engine's. Measured times are not exact enough to distinguish such plans.
        noise: Fraction of the step time within which two plans count as equally fast: the simpler
            one is chosen, of one device, even shares, uneven shares and a pipeline.
    """

    num_micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    recompute: bool = True
    host: bool = True
    schedules: tuple[ScheduleName, ...] = ("zero_bubble",)
    most_rounds: int = 4
    simpler_within: float = 0.02
    noise: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Candidate plan of the search.

    Args:
        grouping: Devices of each replica.
        assignment: Layers that each device computes and owns.
        prediction: Predicted costs.
        shortages: Pairs of a device that lacks memory and the missing bytes.
    """

    grouping: Grouping
    assignment: Assignment
    prediction: Prediction
    shortages: tuple[tuple[int, int], ...]

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory."""
        return not self.shortages


def num_rounds(replica: ReplicaAssignment) -> int:
    """Return the number of stages per device of a replica."""
    return len(replica.spans) // len(set(replica.devices))


def is_interleaved(replica: ReplicaAssignment) -> bool:
    """Whether a device has several stages of a replica."""
    return num_rounds(replica) > 1


class PlanEvaluator:
    """Evaluator of plans: predicts and ranks them."""

    def __init__(self, profile: CostProfile, choices: Choices) -> None:
        self.profile = profile
        self.choices = choices

    def predict(self, assignment: Assignment) -> Prediction:
        """Return the prediction of an assignment."""
        return predict(assignment, self.profile)

    def candidate(self, grouping: Grouping, assignment: Assignment) -> Candidate:
        """Return an assignment with its prediction, as a candidate."""
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

    def polished(
        self,
        grouping: Grouping,
        assignment: Assignment,
        counts: Sequence[int],
        *,
        host: bool,
        seconds: Callable[[Assignment], float] | None = None,
    ) -> Assignment:
        """Return an assignment that no small change makes faster."""
        layers, cluster = self.profile.model.layers, self.profile.cluster
        spread = None
        if is_over_machines(grouping, cluster):
            spread = functools.partial(spread_owners, layers, cluster=cluster)
        recut_plan = functools.partial(recut, recompute=assignment.recompute, profile=self.profile)
        # The estimate of `recut` does not hold for interleaved stages.
        can_recut = not any(map(is_interleaved, assignment.replicas))
        return polish(
            assignment,
            seconds or self.seconds,
            counts,
            recut=functools.cache(recut_plan) if can_recut else lambda _: (),
            host=host,
            spread=spread,
        )

    def fits(self, prediction: Prediction) -> bool:
        """Whether every device has enough memory."""
        return not any(shortages(prediction.memory, self.profile.cluster))

    def weighed(self, assignment: Assignment, prediction: Prediction) -> float:
        """Return the seconds of a step, plus a fraction for everything that is not simple."""
        layers, cluster = self.profile.model.layers, self.profile.cluster
        owners = spread_owners(layers, assignment.replicas, cluster)
        less_simple = [
            HOST_OWNER in assignment.owners,
            assignment.owners != owners,
            any(assignment.recompute),
            any(len(r.spans) == 1 and r.num_micro_batches > 1 for r in assignment.replicas),
            any(replica.schedule != "1f1b" for replica in assignment.replicas),
        ]
        # Every additional round adds calls for each micro-batch.
        num_more = sum(less_simple) + max(map(num_rounds, assignment.replicas)) - 1
        return prediction.step_seconds * (1 + self.choices.simpler_within * num_more)
