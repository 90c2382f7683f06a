"""Steps of custom loops: the outermost calls in which gradients are taken.

    for batch in dataset:                  boundary
        strategy.run(step, (batch,))   <-- outermost call, its trace takes a gradient
    for batch in dataset:
        with tf.GradientTape() ...         no outermost call:
        optimizer.apply_gradients(...) <-- the first such line is the boundary

A step is the time from one boundary to the next, so it holds all that the loop does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from evener.doctor.watch.observation import Line
from evener.doctor.watch.probes.ending import own_line
from evener.doctor.watch.probes.progress import Progress
from evener.doctor.watch.probes.waiting import Waiting

Key = tuple[Any, ...]


class Entries:
    """The outermost calls of traced functions and of ``strategy.run``.

    Args:
        progress: Takes note of steps.
        waiting: Knows how long batches were waited for.
    """

    def __init__(self, progress: Progress, waiting: Waiting) -> None:
        self._progress = progress
        self._waiting = waiting
        self.in_fit = False
        self.traced = False
        self.serial = 0
        self.open_since: float | None = None
        self.where: Line | None = None
        self._owner: int | None = None
        self._trains = False
        self._keys = set[Key]()
        self._lead: Key | None = None
        self._last: float | None = None
        self._waited = 0.0

    def call(self, key: Key, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function; if it is an outermost one that trains, that is a step.

        Args:
            key: Key, equal for calls of the same lines.
            function: Function to call.
            args: Its arguments.
            kwargs: Its keyword arguments.
        """
        if self._owner is not None:
            return function(*args, **kwargs)
        self._owner = threading.get_ident()
        self._trains = key in self._keys
        self.serial += 1
        self.open_since = self._progress.clock()
        if self._lead is None:
            self.where = own_line()
        try:
            result = function(*args, **kwargs)
        finally:
            self._owner = None
            self.open_since = None
        if self._trains:
            self._keys.add(key)
            self._boundary(key)
        return result

    def trained(self, *, is_eager: bool) -> None:
        """Take note of a gradient taken, or an optimizer applied, a moment ago."""
        if self._owner is not None:
            self._trains = True
        elif is_eager and not self.in_fit:
            where = own_line()
            if where is not None:
                self.where = self.where if self._lead else where
                self._boundary(("eager", where))

    def _boundary(self, key: Key) -> None:
        if self.in_fit:
            return
        self._lead = self._lead or key
        if key != self._lead:
            return
        now, waited = self._progress.clock(), self._waiting.seconds()
        self._progress.stepped(
            seconds=None if self._last is None else now - self._last,
            input_seconds=waited - self._waited,
            traced=self.traced,
            where=self.where,
        )
        # What the doctor has done meanwhile is not the program's time.
        self._last, self._waited, self.traced = self._progress.clock(), waited, False
