"""The throughput of training: samples per second, and the time that is left."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_WINDOW = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The progress of training at one time.

    Args:
        seconds: The time of a monotonic clock.
        num_steps: The steps since training began.
        samples: The samples of each device since training began.
    """

    seconds: float
    num_steps: int
    samples: tuple[int, ...]


class Throughput:
    """The throughput over the last few measurements and over an epoch, and the time left.

    Add the first measurement after the first step, most of whose time is tracing.
    """

    def __init__(self) -> None:
        self._first: Measurement | None = None
        self._epoch: Measurement | None = None
        self._last: deque[Measurement] = deque(maxlen=_WINDOW)

    @property
    def has_started(self) -> bool:
        """Whether there is a measurement."""
        return self._first is not None

    def add(self, measurement: Measurement) -> None:
        """Add a measurement."""
        self._last.append(measurement)
        if self._first is None:
            self._first = self._epoch = measurement

    def start_epoch(self, measurement: Measurement) -> None:
        """Measure the throughput of an epoch from here."""
        if self._first is not None:
            self._epoch = measurement

    def rates(self) -> tuple[float, ...]:
        """Return the samples per second of each device, recently; empty if unknown."""
        return _rates(self._last[0], self._last[-1]) if self._last else ()

    def epoch_rate(self, now: Measurement) -> float | None:
        """Return the samples per second of all devices in this epoch."""
        return (sum(_rates(self._epoch, now)) or None) if self._epoch is not None else None

    def seconds_left(self, now: Measurement, num_steps: int) -> float | None:
        """Return the seconds for the remaining steps; None if unknown.

        Args:
            now: The current measurement.
            num_steps: Number of remaining steps.
        """
        if self._first is None or now.num_steps <= self._first.num_steps:
            return None
        done = now.num_steps - self._first.num_steps
        return max(0, num_steps) * (now.seconds - self._first.seconds) / done


def _rates(first: Measurement, last: Measurement) -> tuple[float, ...]:
    seconds = last.seconds - first.seconds
    if seconds <= 0:
        return ()
    return tuple(
        (after - before) / seconds
        for before, after in zip(first.samples, last.samples, strict=True)
    )
