"""Where the layers of a model are cut into stages.

::

    layers    | 0 1 2 3 4 | 5 6 | 7 8 9 |        T = sum of t_s + (m - 1) max t_s
    stages        t_0       t_1    t_2

T is the time of a pipeline of m micro-batches whose stages take t_s for one. Of short models, the
cuts are the best there are: for each number of layers and stages, all pairs (max, sum) are kept
that no other pair beats in both. Of long ones, the maximum alone is made as small as possible.

Source: Y. Huang et al., "GPipe", 2019, section 2.3, for the time; the search is our own.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

MOST_FOR_ALL = 20_000
"""Stages x layers^2 up to which all cuts are looked at."""

Seconds = Callable[[int, int, int], float]
"""Seconds of a stage for one micro-batch: its number, first layer, layer behind its last."""

Fits = Callable[[int, int, int], bool]
"""Whether a stage fits its device, by the same arguments."""


def best_cuts(
    num_stages: int,
    num_layers: int,
    num_micro_batches: int,
    seconds: Seconds,
    fits: Fits,
) -> tuple[int, ...] | None:
    """Return where each stage begins, and the number of layers; None if no cuts fit.

    Args:
        num_stages: At least one layer goes to each.
        num_layers: Of the model.
        num_micro_batches: m above.
        seconds: Of a stage; more layers never take less time.
        fits: Whether a stage fits its device; if it does, it does with fewer layers.
    """
    if num_stages * num_layers**2 <= MOST_FOR_ALL:
        return _by_all(num_stages, num_layers, num_micro_batches, seconds, fits)
    return _by_maximum(num_stages, num_layers, seconds, fits)


_Way = tuple[float, float, tuple[int, ...]]
"""The maximum, the sum, and the cuts so far."""


def _by_all(
    num_stages: int, num_layers: int, num_micro_batches: int, seconds: Seconds, fits: Fits
) -> tuple[int, ...] | None:
    ways: dict[int, list[_Way]] = {0: [(0.0, 0.0, (0,))]}
    for stage in range(num_stages):
        following: dict[int, list[_Way]] = {}
        for first, before in ways.items():
            last = num_layers - (num_stages - stage - 1)
            # The last stage takes all that is left.
            ends = range(first + 1, last + 1)
            if stage == num_stages - 1:
                ends = range(num_layers, num_layers + 1)
            # True where the stage does not fit: so it is with more layers.
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
    """Return the cuts with the least maximum, by halving the range it is in."""
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
    """Give each stage as many layers as it can have in some time; None if some are left.

    A stage that cannot have even the next layer may be on a slow device, and a faster one behind
    it: then earlier stages may have to take fewer.
    """

    def is_too_long(stage: int, first: int, end: int) -> bool:
        return seconds(stage, first, end) > most or not fits(stage, first, end)

    cuts = [0]
    for stage in range(num_stages):
        first = cuts[-1]
        last = num_layers - (num_stages - stage - 1)
        ends = range(first + 1, last + 1)
        # True where the stage is too long: it stays so with every further layer.
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
    """Return cuts of which no stage is too long, by all ends that each stage can have."""
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
