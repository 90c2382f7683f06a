"""Training steps: counted, timed, recorded, and the program ended when enough were seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from evener.doctor.watch.observation import Line
from evener.doctor.watch.probes.ending import as_json
from evener.doctor.watch.probes.events import Events

# Cumulative values are written again after so long.
_FLUSH_SECONDS = 0.5


class Progress:
    """The steps that were seen so far.

    Args:
        events: Events to record them in.
        num_steps: Number of steps to watch, without those that trace.
        min_seconds: Least total duration of these steps.
        clock: Function that returns monotonic seconds.
    """

    def __init__(
        self,
        events: Events,
        *,
        num_steps: int,
        min_seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.events = events
        self.clock = clock
        self.sources: list[Callable[[], None]] = []
        self.at_first_step: list[Callable[[], None]] = []
        self.end: Callable[[], None] = lambda: None
        self.num_steps = 0
        self._has_begun = False
        self._num_timed = 0
        self._timed_seconds = 0.0
        self._wanted = num_steps
        self._min_seconds = min_seconds
        self._began = clock()
        self._flushed = 0.0
        self._lock = threading.RLock()

    @property
    def is_training(self) -> bool:
        """Return whether the first step is over."""
        return self.num_steps > 0

    def stepped(
        self,
        *,
        num_steps: int = 1,
        seconds: float | None,
        input_seconds: float = 0.0,
        traced: bool = False,
        where: Line | None = None,
    ) -> None:
        """Record a call that took steps and has just returned.

        Args:
            num_steps: Number of its steps.
            seconds: Duration, from batch to batch; None if it is not known.
            input_seconds: Time it waited for batches.
            traced: Whether a function was traced meanwhile.
            where: The line of the program.
        """
        if not self.events.is_here:
            return
        first = not self.is_training
        traced = traced or first
        self.num_steps += num_steps
        timed = seconds is not None and not traced
        self.events.write(
            "step",
            num=num_steps,
            at=self.clock() - self._began,
            seconds=seconds if timed else None,
            input=input_seconds,
            where=as_json(where),
        )
        self._begin()
        if timed and seconds is not None:
            self._num_timed += num_steps
            self._timed_seconds += seconds
        self.maybe_flush()
        self._end_if_enough(self._num_timed, self._timed_seconds)

    def looped(self, num_steps: int, seconds: float, where: Line | None) -> None:
        """Take note of steps inside of a call that goes on: a loop in a graph."""
        with self._lock:
            self.events.write(
                "loop",
                num=num_steps,
                at=self.clock() - self._began,
                seconds=seconds,
                where=as_json(where),
            )
            self._begin()
            self._num_timed += num_steps
            self._timed_seconds += seconds
            self.maybe_flush()
            self._end_if_enough(self._num_timed, self._timed_seconds)

    def maybe_flush(self) -> None:
        """Write the cumulative values, unless they were written a short while ago."""
        if self.clock() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the cumulative values."""
        self._flushed = self.clock()
        self._run(self.sources)

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._run(self.at_first_step)

    def _end_if_enough(self, num_steps: int, seconds: float) -> None:
        if num_steps >= self._wanted and seconds >= self._min_seconds:
            with self._lock:
                self.flush()
                self.events.write("enough")
                self.end()

    def _run(self, calls: list[Callable[[], None]]) -> None:
        for call in calls:
            try:
                call()
            except Exception as error:
                self.events.missed(getattr(call, "__qualname__", "something"), error)
