"""Pace of samples: dense at the start of a run and ever thinner, so that a record stays small."""

from __future__ import annotations


class Pace:
    """Tells when the next sample is due; the interval doubles after so many samples.

    A run of a week has 20 doublings at most, whatever its steps take.

    Args:
        seconds: First interval, above 0.
        num_samples: Number of samples with the same interval, above 0.

    >>> pace = Pace(1.0, 2)
    >>> [now for now in range(12) if pace.is_due(now)]
    [0, 1, 2, 4, 6, 10]
    """

    def __init__(self, seconds: float, num_samples: int) -> None:
        self._interval = seconds
        self._num_samples = num_samples
        self._taken = 0
        self._next = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether a sample is due, and count it as taken if it is.

        Args:
            now: Time in seconds.
        """
        if now < self._next:
            return False
        self._taken += 1
        if self._taken >= self._num_samples:
            self._taken = 0
            self._next = now + self._interval
            self._interval *= 2
        else:
            self._next = now + self._interval
        return True
