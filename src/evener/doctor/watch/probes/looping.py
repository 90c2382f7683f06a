"""Steps of a loop that is traced as a whole: seen by the optimizers' own counters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from evener.doctor.watch.probes.entries import Entries
from evener.doctor.watch.probes.progress import Progress

_POLL_SECONDS = 0.25
# One call that takes so many steps by itself is a loop.
_LEAST_STEPS = 2


class Looping:
    """Reads the step counts of optimizers while a call runs.

    Args:
        progress: Record of steps.
        entries: Record of the current call.
        optimizers: Optimizers that were applied so far.
    """

    def __init__(self, progress: Progress, entries: Entries, optimizers: Iterable[Any]) -> None:
        self._progress = progress
        self._entries = entries
        self._optimizers = optimizers
        self._serial = 0
        self._counted = 0
        self._asked = 0.0

    def watch(self, stopped: Callable[[float], bool]) -> None:
        """Begin to ask, in a thread.

        Args:
            stopped: Waits so many seconds; true ends the thread.
        """

        def ask_again_and_again() -> None:
            while not stopped(_POLL_SECONDS):
                try:
                    self.ask()
                except Exception as error:
                    self._progress.events.missed("steps of a loop in a graph", error)
                    return

        threading.Thread(target=ask_again_and_again, name="evener-looping", daemon=True).start()

    def ask(self) -> None:
        """Ask once; steps within one call are recorded."""
        serial, now = self._entries.serial, self._progress.clock()
        if self._entries.open_since is None or now - self._entries.open_since < _POLL_SECONDS:
            self._serial = 0
            return
        counted = max(
            (int(optimizer.iterations.numpy()) for optimizer in list(self._optimizers)), default=0
        )
        num_new = counted - self._counted
        if serial != self._serial:
            self._serial, self._counted, self._asked = serial, counted, now
        elif num_new >= _LEAST_STEPS:
            self._progress.looped(num_new, now - self._asked, self._entries.where)
            self._counted, self._asked = counted, now
