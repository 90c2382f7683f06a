"""Speeds from measured steps, and ideal shares from speeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST = 1e-250
"""Lower bound of the ratio of two usable speeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """Measured speed with its error.

    Args:
        median: Median of samples / seconds.
        relative_error: Standard error of the median as a fraction of it; 0 for a single step, which
            has no error estimate.
    """

    median: float
    relative_error: float


def measured_speed(steps: Sequence[tuple[float, float]]) -> MeasuredSpeed | None:
    """Return the speed of a replica over a window, or None if nothing usable was measured.

    The error is based on the median absolute deviation (MAD), which is robust to outliers: 1.4826
    MAD estimates the standard deviation, and the error of a median is 1.2533 standard deviations
    divided by the square root of the number of steps.

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
    """Whether shares can be divided by a speed; False for NaN."""
    return 1e-100 <= speed <= 1e100


def ideal_shares(
    speeds: Sequence[float],
    *,
    minimum_share: float = 0.0,
    maximum_shares: Sequence[float] = (),
) -> tuple[float, ...]:
    """Return fractions proportional to speed, within bounds.

    Replicas that would fall below the minimum get the minimum, those that would exceed their
    maximum get the maximum, and the others share the rest by speed.

    Args:
        speeds: Speeds in samples per second, above 0; or shares, which are then only bounded. A
            share of 0 gets the excess of all others.
        minimum_share: Least fraction, from 0 to 1 / number of speeds. A lower maximum takes
            precedence.
        maximum_shares: Largest fraction of each replica, 0 or more; empty for no limit. If they
            add up to less than 1, the fractions are proportional to them.

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
        # Fix the bounds of the side with the larger total violation, and repeat.
        is_above = math.fsum(above.values()) >= math.fsum(below.values())
        outside = {k: bounds[k][is_above] for k in (above if is_above else below)}
        outside = {k: bound for k, bound in outside.items() if k not in bounded}
        if not outside or len(bounded) + len(outside) == len(shares):
            return tuple(shares)
        bounded |= outside


def seconds_per_sample(shares: Sequence[float], speeds: Sequence[float]) -> float:
    """Return the predicted time of a step per sample of the batch.

    It is that of the slowest replica: the largest share / speed.
    """
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
