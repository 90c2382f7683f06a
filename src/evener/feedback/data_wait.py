"""Time that a worker waits for its data: every worker reads all of it.

A state machine with a clock of its caller. It tells once, of the first `NUM_STEPS` steps in a row
of which waiting is a large part.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from evener.units import format_seconds

T = TypeVar("T")

NUM_STEPS = 50
LEAST_PART = 0.2
LEAST_SECONDS = 1.0
"""Least part of the time, and least seconds of waiting, that are told."""


class DataWait:
    """Time that a worker waits for its data.

    Args:
        tell: Function that is called with a line, once.
        explain: Function that returns what the workers do with their data, as a clause.
        num_steps: Function that returns the number of steps so far: what is read between two
            batches without a step counts for nothing. None if there is a step behind each.
        clock: Clock in seconds.
    """

    def __init__(
        self,
        tell: Callable[[str], object],
        explain: Callable[[], str],
        *,
        num_steps: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tell, self._explain, self._clock = tell, explain, clock
        self._count = num_steps or itertools.count().__next__
        self._count_before = -1
        self._is_told = self._is_taking = False
        self._last: float | None = None
        self._num_steps = 0
        self._waited = self._total = 0.0

    def take(self, read: Callable[[], Sequence[T]]) -> Sequence[T]:
        """Take the next batches.

        The first ones of an epoch, which fill buffers, do not count.

        Args:
            read: Function that reads them; it returns none at the end of the data. It may come back
                here for the batches that it reads by itself.
        """
        if self._is_taking:
            return read()
        self._is_taking = True
        began = self._clock()
        try:
            batches = read()
        finally:
            self._is_taking = False
        ended, count = self._clock(), self._count()
        if self._last is not None and batches and count != self._count_before:
            self._num_steps += 1
            self._waited += ended - began
            self._total += ended - self._last
            if self._num_steps == NUM_STEPS:
                self._conclude()
        self._count_before = count
        self._last = ended if batches else None
        return batches

    def _conclude(self) -> None:
        is_large = self._waited >= max(LEAST_SECONDS, LEAST_PART * self._total)
        if is_large and not self._is_told:
            self._is_told = True
            self._tell(
                f"this worker waited for its data {format_seconds(self._waited)} of the "
                f"{format_seconds(self._total)} of {NUM_STEPS} steps: {self._explain()}; "
                "cache or prefetch the data, or map it in parallel"
            )
        self._num_steps, self._waited, self._total = 0, 0.0, 0.0
