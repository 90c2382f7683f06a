"""From measured steps to speeds, and from speeds to the shares that fit them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST = 1e-250
"""Below every ratio of two usable speeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """A speed and how sure it is.

    Args:
        median: The median of samples / seconds.
        relative_error: The standard error of the median as a fraction of it; 0 where it
            cannot be told, from a single step.
    """

    median: float
    relative_error: float


def measured_speed(steps: Sequence[tuple[float, float]]) -> MeasuredSpeed | None:
    """Return the speed of a replica over a window, or None if nothing usable was measured.

    The error follows from the median absolute deviation, which single outliers do not move:
    1.4826 MAD estimates a standard deviation, and 1.2533 standard deviations over the root
    of the number of steps are the error of a median.

    Source: P. J. Rousseeuw, C. Croux, "Alternatives to the Median Absolute Deviation", 1993,
    section 1. Ours: the factor 1 + 1.5 / n, as the MAD of few steps is too small.

    >>> measured_speed([(10, 1.0), (10, 1.0), (10, 1.0), (10, 50.0)])
    MeasuredSpeed(median=10.0, relative_error=0.0)
    """
    speeds = [samples / seconds for samples, seconds in steps if samples > 0 and seconds > 0]
    usable = [speed for speed in speeds if is_usable(speed)]
    if not usable:
        return None
    median, num_steps = statistics.median(usable), len(usable)
    deviation = 1.4826 * statistics.median(abs(speed - median) for speed in usable)
    error = 1.2533 * deviation * (1 + 1.5 / num_steps) / math.sqrt(num_steps)
    return MeasuredSpeed(median=median, relative_error=error / median)


def is_usable(speed: float) -> bool:
    """Whether it is a number that shares can be divided by; NaN is not."""
    return 1e-100 <= speed <= 1e100


def ideal_shares(
    speeds: Sequence[float],
    *,
    minimum_share: float = 0.0,
    maximum_shares: Sequence[float] = (),
) -> tuple[float, ...]:
    """Return fractions proportional to speed, within bounds.

    Replicas that would fall below the minimum get it, those that would exceed their maximum get
    that, and the others divide the rest by speed.

    Args:
        speeds: In samples per second, above 0; also shares, to keep them but for the bounds. A
            share of 0 gets what is too much for all others.
        minimum_share: From 0 to 1 / number of speeds. A maximum below it wins.
        maximum_shares: For each replica the most it can hold, 0 or more; empty for no limit. If
            they add up to less than 1, the fractions are proportional to them.

    >>> ideal_shares([300, 100])
    (0.75, 0.25)
    >>> ideal_shares([100, 100, 100], maximum_shares=[1, 0.2, 1])
    (0.4, 0.2, 0.4)
    """
    most = tuple(maximum_shares) or (1.0,) * len(speeds)
    if math.fsum(most) <= 1.0:
        total = math.fsum(most)
        return tuple(part / total for part in most) if total else ideal_shares(speeds)
    fastest = max(speeds)
    relative = [max(speed / fastest, _LEAST) for speed in speeds]
    bounds = [(min(minimum_share, upper), upper) for upper in most]
    bounded: dict[int, float] = {}
    while True:
        rest = 1.0 - math.fsum(bounded.values())
        total = math.fsum(part for index, part in enumerate(relative) if index not in bounded)
        shares = [bounded.get(k, rest * part / total) for k, part in enumerate(relative)]
        below = {k: low - shares[k] for k, (low, _) in enumerate(bounds) if shares[k] < low}
        above = {k: shares[k] - high for k, (_, high) in enumerate(bounds) if shares[k] > high}
        # What is too much for some, and too little for others: the larger of both stays so.
        is_above = math.fsum(above.values()) >= math.fsum(below.values())
        outside = {k: bounds[k][is_above] for k in (above if is_above else below)}
        outside = {k: bound for k, bound in outside.items() if k not in bounded}
        if not outside or len(bounded) + len(outside) == len(shares):
            return tuple(shares)
        bounded |= outside


def seconds_per_sample(shares: Sequence[float], speeds: Sequence[float]) -> float:
    """Return the predicted time of a step per sample of the batch.

    A step takes as long as its slowest replica: the largest share / speed.
    """
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
