"""Cuts of a model into the stages of a pipeline.

::

    layers    | 0 1 2 3 4 | 5 6 | 7 8 9 |        T = sum of t_s + (m - 1) max t_s
    stages        t_0       t_1    t_2

T is the time of a pipeline of m micro-batches whose stages take t_s for each. For short models the
cuts are optimal: for each number of layers and stages, all Pareto-optimal pairs (max, sum) are
kept. For long models only the maximum is minimized.

Source: Y. Huang et al., "GPipe", 2019, section 2.3, for the time; the search is our own.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

MOST_FOR_ALL = 20_000
"""Upper limit of stages x layers^2 for the optimal search."""

Seconds = Callable[[int, int, int], float]
"""Seconds of a micro-batch in a stage: stage number, first layer, last layer plus 1."""

Fits = Callable[[int, int, int], bool]
"""Whether a stage fits into the memory of its device; the arguments are those of `Seconds`."""


def best_cuts(
    num_stages: int,
    num_layers: int,
    num_micro_batches: int,
    seconds: Seconds,
    fits: Fits,
) -> tuple[int, ...] | None:
    """Return the first layer of each stage, and the number of layers; None if no cuts fit.

    Args:
        num_stages: Number of stages; each gets at least one layer.
        num_layers: Number of layers of the model.
        num_micro_batches: Number of micro-batches, m above.
        seconds: Seconds of a stage; more layers never take less time.
        fits: Predicate whether a stage fits its device; a stage that fits also fits with fewer
            layers.
    """
    if num_stages * num_layers**2 <= MOST_FOR_ALL:
        return _by_all(num_stages, num_layers, num_micro_batches, seconds, fits)
    return _by_maximum(num_stages, num_layers, seconds, fits)


_Way = tuple[float, float, tuple[int, ...]]
"""Maximum and sum of the stages' seconds, and the cuts so far."""


def _by_all(
    num_stages: int, num_layers: int, num_micro_batches: int, seconds: Seconds, fits: Fits
) -> tuple[int, ...] | None:
    ways: dict[int, list[_Way]] = {0: [(0.0, 0.0, (0,))]}
    for stage in range(num_stages):
        following: dict[int, list[_Way]] = {}
        for first, before in ways.items():
            last = num_layers - (num_stages - stage - 1)
            # The last stage gets all remaining layers.
            ends = range(first + 1, last + 1)
            if stage == num_stages - 1:
                ends = range(num_layers, num_layers + 1)
            # The key is True if the stage does not fit, and stays True for more layers.
            count = bisect.bisect_left(
                ends, True, key=lambda end, stage=stage, first=first: not fits(stage, first, end)
            )
            for end in ends[:count]:
                took = seconds(stage, first, end)
                following.setdefault(end, []).extend(
                    (max(most, took), total + took, (*cuts, end)) for most, total, cuts in before
                )
        ways = {end: _undominated(found) for end, found in following.items()}
    done = ways.get(num_layers)
    if not done:
        return None
    return min(done, key=lambda way: way[1] + (num_micro_batches - 1) * way[0])[2]


def _undominated(ways: Sequence[_Way]) -> list[_Way]:
    kept: list[_Way] = []
    for way in sorted(ways):
        if not kept or way[1] < kept[-1][1]:
            kept.append(way)
    return kept


def _by_maximum(
    num_stages: int, num_layers: int, seconds: Seconds, fits: Fits
) -> tuple[int, ...] | None:
    """Return the cuts with the least maximum, by bisection."""
    most = max(seconds(stage, 0, num_layers) for stage in range(num_stages))
    found = _greedy(num_stages, num_layers, most, seconds, fits)
    if found is None:
        return None
    low, high = 0.0, most
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        cuts = _greedy(num_stages, num_layers, middle, seconds, fits)
        if cuts is None:
            low = middle
        else:
            found, high = cuts, middle
    return found


def _greedy(
    num_stages: int, num_layers: int, most: float, seconds: Seconds, fits: Fits
) -> tuple[int, ...] | None:
    """Return cuts in which each stage takes as many layers as possible; None if some are left.

    If a stage cannot take even one layer, it may be on a slow device; earlier stages may then have
    to take fewer layers, so `_reachable` tries all cuts.
    """

    def is_too_long(stage: int, first: int, end: int) -> bool:
        return seconds(stage, first, end) > most or not fits(stage, first, end)

    cuts = [0]
    for stage in range(num_stages):
        first = cuts[-1]
        last = num_layers - (num_stages - stage - 1)
        ends = range(first + 1, last + 1)
        # The key is True if the stage is too long, and stays True for more layers.
        count = bisect.bisect_left(
            ends,
            True,
            key=lambda end, stage=stage, first=first: is_too_long(stage, first, end),
        )
        if count == 0:
            return _reachable(num_stages, num_layers, is_too_long)
        cuts.append(first + count)
    return tuple(cuts) if cuts[-1] == num_layers else None


def _reachable(
    num_stages: int, num_layers: int, is_too_long: Callable[[int, int, int], bool]
) -> tuple[int, ...] | None:
    """Return cuts in which no stage is too long, from all possible ends of each stage."""
    begins: list[dict[int, int]] = [{0: 0}]
    for stage in range(num_stages):
        last = num_layers - (num_stages - stage - 1)
        following: dict[int, int] = {}
        for first in begins[-1]:
            for end in range(first + 1, last + 1):
                if is_too_long(stage, first, end):
                    break
                following.setdefault(end, first)
        begins.append(following)
    if num_layers not in begins[-1]:
        return None
    cuts = [num_layers]
    for of_stage in reversed(begins[1:]):
        cuts.append(of_stage[cuts[-1]])
    return tuple(reversed(cuts))
