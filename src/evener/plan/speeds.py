"""From measured steps to speeds, and from speeds to the shares that fit them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


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


def ideal_shares(speeds: Sequence[float], *, minimum_share: float = 0.0) -> tuple[float, ...]:
    """Return fractions proportional to speed, none below the minimum.

    Replicas that would fall below the minimum get it, and the others divide the rest by
    speed; that can push another one below, so it is done until none is.

    Args:
        speeds: In samples per second, above 0.
        minimum_share: From 0 to 1 / number of speeds.

    >>> ideal_shares([300, 100])
    (0.75, 0.25)
    """
    fastest = max(speeds)
    relative = [speed / fastest for speed in speeds]
    raised: set[int] = set()
    while True:
        rest = 1.0 - minimum_share * len(raised)
        total = math.fsum(part for index, part in enumerate(relative) if index not in raised)
        shares = [
            minimum_share if index in raised else rest * part / total
            for index, part in enumerate(relative)
        ]
        below = {index for index, share in enumerate(shares) if share < minimum_share} - raised
        # All below at once is rounding: there, minimum_share is 1 / number of replicas.
        if not below or len(raised | below) == len(shares):
            return tuple(shares)
        raised |= below


def seconds_per_sample(shares: Sequence[float], speeds: Sequence[float]) -> float:
    """Return the predicted time of a step per sample of the batch.

    A step takes as long as its slowest replica: the largest share / speed.
    """
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
