"""Local search: small changes to a plan as long as they make it faster.

The formula that the search uses for cuts and shares approximates the timeline: a pipeline with long
transfers waits a little longer or shorter. Starting from the result of the formula, a layer moves
to a neighbouring stage, a sample to another replica, a layer's variables to another owner, or the
number of micro-batches changes; the timeline decides.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from evener.cost_model.assignment import HOST_OWNER, Assignment, ReplicaAssignment, Span
from evener.cost_model.ownership import holders_of

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
    """Return an assignment that no small change makes faster.

    Args:
        assignment: Start of the search.
        seconds: Function that returns the seconds of a step; infinite if it does not fit into
            memory.
        num_micro_batches: Numbers of micro-batches to try.
        recut: Function that returns a replica with other cuts; equally many for replicas that are
            alike.
        host: Whether the host may own variables.
        spread: Function that returns the owners for replicas; None if owners may be chosen freely.
    """
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
