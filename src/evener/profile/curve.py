"""Curves: seconds, or bytes, as a function of the number of samples."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from evener.errors import ProfileError


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds as a function of the number of samples: piecewise linear, never falling.

    0 samples take 0 seconds. Fewer samples than at the first point take as long as the first point,
    because launch overhead dominates. The curve is extrapolated with the slope of its last part.

    Args:
        points: Pairs (samples, seconds), at least one, in ascending order of samples; samples above
            0, seconds 0 or more. A point below an earlier one, which is noise, is raised to it.

    Raises:
        ProfileError: PROF-001 if points are missing, not ascending or not finite.

    >>> curve = Curve(((1, 0.010), (10, 0.019)))
    >>> round(curve(4), 6), round(curve(20), 6), curve(0)
    (0.013, 0.029, 0.0)
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Check the points."""
        points = tuple((float(samples), float(seconds)) for samples, seconds in self.points)
        rising = all(a[0] < b[0] for a, b in itertools.pairwise(points))
        numbers = [number for point in points for number in point]
        usable = all(math.isfinite(n) and n >= 0 for n in numbers)
        if not points or not rising or not usable or points[0][0] <= 0:
            raise ProfileError(
                "PROF-001",
                f"A curve cannot be made of the points {list(self.points)}.",
                why="It needs pairs (samples, seconds), at least one, by rising samples above 0, "
                "with seconds of 0 or more.",
                fix="Write for example [[1, 0.010], [64, 0.080]].",
            )
        least = 0.0
        raised: list[tuple[float, float]] = []
        for samples, seconds in points:
            least = max(least, seconds)
            raised.append((samples, least))
        object.__setattr__(self, "points", tuple(raised))

    def __call__(self, samples: float) -> float:
        """Return the seconds for a number of samples, 0 or more."""
        points = self.points
        if samples <= 0:
            return 0.0
        if samples <= points[0][0]:
            return points[0][1]
        if len(points) == 1:
            # With a single point, time beyond it is proportional to the samples.
            return points[0][1] * samples / points[0][0]
        after = min(bisect.bisect_left(points, (samples, -1.0)), len(points) - 1)
        (first, low), (last, high) = points[after - 1], points[after]
        return low + (high - low) * (samples - first) / (last - first)

    def scaled(self, factor: float) -> Curve:
        """Return the curve with all seconds multiplied by a factor, 0 or more."""
        return Curve(tuple((samples, seconds * factor) for samples, seconds in self.points))

    @staticmethod
    def total(curves: Iterable[Curve]) -> Curve:
        """Return the sum of curves, such as those of the layers of a stage.

        >>> Curve.total([Curve(((1, 1.0), (3, 2.0))), Curve(((1, 1.0), (2, 3.0)))])
        Curve(points=((1.0, 2.0), (2.0, 4.5), (3.0, 7.0)))
        """
        curves = list(curves)
        sample_counts = sorted({samples for curve in curves for samples, _ in curve.points})
        return Curve(
            tuple(
                (samples, math.fsum(curve(samples) for curve in curves))
                for samples in sample_counts
            )
        )
