"""How fast training goes, from looks at the clock and at what was done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_LOOKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was done by a moment.

    Args:
        seconds: The clock.
        num_steps: The steps since training began.
        samples: The samples of each device since training began.
    """

    seconds: float
    num_steps: int
    samples: tuple[int, ...]


class Pace:
    """Speed over the last few looks, over an epoch, and the time that is left.

    The first look is the beginning: make it after the first step, whose time is mostly that
    of tracing.
    """

    def __init__(self) -> None:
        self._first: Look | None = None
        self._epoch: Look | None = None
        self._last: deque[Look] = deque(maxlen=_LOOKS)

    @property
    def has_begun(self) -> bool:
        """Whether there was a look."""
        return self._first is not None

    def look(self, look: Look) -> None:
        """Take note of a moment."""
        self._last.append(look)
        if self._first is None:
            self._first = self._epoch = look

    def begin_epoch(self, look: Look) -> None:
        """Measure the speed of an epoch from here."""
        if self._first is not None:
            self._epoch = look

    def rates(self) -> tuple[float, ...]:
        """Return the samples per second of each device of late; empty while nobody knows."""
        return _rates(self._last[0], self._last[-1]) if self._last else ()

    def epoch_rate(self, now: Look) -> float | None:
        """Return the samples per second of all devices in this epoch."""
        return (sum(_rates(self._epoch, now)) or None) if self._epoch is not None else None

    def seconds_left(self, now: Look, num_steps: int) -> float | None:
        """Return the time for some more steps; None while nobody knows.

        Args:
            now: This moment.
            num_steps: How many steps are left.
        """
        if self._first is None or now.num_steps <= self._first.num_steps:
            return None
        done = now.num_steps - self._first.num_steps
        return max(0, num_steps) * (now.seconds - self._first.seconds) / done


def _rates(first: Look, last: Look) -> tuple[float, ...]:
    seconds = last.seconds - first.seconds
    if seconds <= 0:
        return ()
    return tuple(
        (after - before) / seconds
        for before, after in zip(first.samples, last.samples, strict=True)
    )
