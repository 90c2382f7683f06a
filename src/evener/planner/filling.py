"""How many samples each replica gets: as if water were poured into classes of their shapes.

A step takes as long as its slowest replica. The least time T in which the replicas together can
compute the batch, each as many samples as it can in T, is found by halving.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ROUNDING = 1 + 1e-9
"""Times that differ by less are the same: a sum of seconds may fall by a rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaClass:
    """Replicas that are the same.

    Args:
        seconds: The time for a number of samples, never falling; infinite for more than fit into
            memory.
        compute_seconds: The same without what does not depend on the samples. It decides where
            several numbers of samples take the same time.
        count: How many replicas there are.
    """

    seconds: Callable[[int], float]
    compute_seconds: Callable[[int], float]
    count: int = 1


def fill(classes: Sequence[ReplicaClass], num_samples: int) -> list[list[int]] | None:
    """Return the samples of every replica, so that the slowest is as fast as can be.

    Args:
        classes: Kinds of replicas.
        num_samples: Of the batch.

    Returns:
        For each kind the samples of its replicas, which may be 0; None if there is no room.

    >>> fast, slow = (lambda n: 1.0 * n), (lambda n: 3.0 * n)
    >>> fill([ReplicaClass(seconds=f, compute_seconds=f) for f in (fast, slow)], 8)
    [[6], [2]]
    """
    counts = [replica_class.count for replica_class in classes]
    seconds = [replica_class.seconds for replica_class in classes]
    limits = [_most_samples(one, None, 0, num_samples) for one in seconds]
    if sum(limit * count for limit, count in zip(limits, counts, strict=True)) < num_samples:
        return None
    limits = _level(seconds, counts, limits, num_samples)
    # Where weights take longer than samples, all these are as fast: computing decides.
    computing = [replica_class.compute_seconds for replica_class in classes]
    limits = _level(computing, counts, limits, num_samples)
    filled = [[limit] * count for limit, count in zip(limits, counts, strict=True)]
    _take_back(computing, filled, sum(map(sum, filled)) - num_samples)
    return filled


_Seconds = Callable[[int], float]


def _level(
    seconds: Sequence[_Seconds], counts: Sequence[int], limits: Sequence[int], num_samples: int
) -> list[int]:
    """Return the samples of each kind in the least time in which there is room for all."""
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
        # Where one sample of one kind is all that is left between them, no time is.
        if high - low <= 1e-9 * high or sum(enough) - sum(too_few) == 1:
            break
    return enough


def _most_samples(seconds: _Seconds, time: float | None, least: int, most: int) -> int:
    """Return the most samples that a replica computes in some time; None: in any time.

    Args:
        seconds: By samples.
        time: In which they are computed.
        least: As many as are known to be.
        most: Of which more are not looked at.
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
    """Take samples away where they take longest, until none is too many."""
    heap = [
        (-one(count), kind, number)
        for kind, (one, of_kind) in enumerate(zip(seconds, filled, strict=True))
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
