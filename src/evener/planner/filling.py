"""Water-filling assignment of samples to replicas.

The step time is that of the slowest replica. Bisection finds the least time T in which the replicas
together compute the batch, each as many samples as it can in T.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ROUNDING = 1 + 1e-9
"""Relative tolerance of times: rounding may make a sum of seconds fall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaClass:
    """Class of replicas with the same costs.

    Args:
        seconds: Function from samples to seconds, never falling; infinite if the samples do not fit
            into memory.
        compute_seconds: Function from samples to seconds of computation only, which decides between
            numbers of samples with the same `seconds`.
        count: Number of replicas, at least 1.
    """

    seconds: Callable[[int], float]
    compute_seconds: Callable[[int], float]
    count: int = 1


def fill(classes: Sequence[ReplicaClass], num_samples: int) -> list[list[int]] | None:
    """Return the samples of every replica that minimize the time of the slowest one.

    Args:
        classes: Classes of replicas.
        num_samples: Samples of the batch.

    Returns:
        For each class the samples of its replicas, which may be 0; None if the batch does not fit
        into memory.

    >>> fast, slow = (lambda n: 1.0 * n), (lambda n: 3.0 * n)
    >>> fill([ReplicaClass(seconds=f, compute_seconds=f) for f in (fast, slow)], 8)
    [[6], [2]]
    """
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
    """Return the most samples that a replica computes in a given time.

    Args:
        seconds: Function from samples to seconds.
        time: Time limit in seconds; None for any finite time.
        least: Number of samples that is known to be possible.
        most: Largest number of samples to try.
    """
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
