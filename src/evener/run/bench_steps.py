"""Times of the steps of a script: by a callback in ``fit``, by counters, or from call to call."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from evener._tf_private.functions import CALLS_OF_SCRIPTS
from evener.run.loops import is_called_by_script
from evener.run.replace import replace_with
from evener.strategy import Strategy
from evener.strategy.step_audit import trains

_TICK_SECONDS = 0.1

Done = Callable[[Sequence[float]], object]
"""Function that takes the seconds of the steps, the first ones too."""


class FitTimes(keras.callbacks.Callback):
    """Callback that times the steps of ``fit`` from the begin of one to the begin of the next."""

    def __init__(self, seconds: list[float], num_steps: int, done: Done) -> None:
        super().__init__()
        self._seconds, self._num_steps, self._done = seconds, num_steps, done
        self._last: tuple[int, float] | None = None

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._last = None

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Time the steps since the last call: several with ``steps_per_execution``."""
        now = time.perf_counter()
        if self._last is not None:
            before, at = self._last
            count = batch - before
            self._seconds.extend([(now - at) / count] * count)
            if len(self._seconds) >= self._num_steps:
                self._done(self._seconds)
        self._last = batch, now


def time_calls(seconds: list[float], num_steps: int, done: Done) -> None:
    """Time a loop of the script's own on one device, which runs its functions as they are."""
    step: object | None = None
    others: list[object] = []
    last = 0.0

    def call(original: Callable[..., Any], function: Any, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal step, last
        if not is_called_by_script(sys._getframe(2)):
            return original(function, *args, **kwargs)
        now = time.perf_counter()
        if function is step:
            seconds.append(now - last)
            last = now
            if len(seconds) >= num_steps:
                done(seconds)
        results = original(function, *args, **kwargs)
        if step is None and function not in others:
            # It is traced now.
            if trains(function.get_concrete_function(*args, **kwargs)):
                step, last = function, now
            else:
                others.append(function)
        return results

    CALLS_OF_SCRIPTS.apply(replace_with(call))


def watch_strategy(strategy: Strategy, num_steps: int, done: Done) -> None:
    """Call a function when a strategy has counted so many steps outside of ``fit``, in a thread."""

    def watch() -> None:
        while len(seconds := counted_seconds(strategy)) < num_steps:
            time.sleep(_TICK_SECONDS)
        done(seconds)

    threading.Thread(target=watch, name="evener bench", daemon=True).start()


def counted_seconds(strategy: Strategy) -> list[float]:
    """Return the times of the last steps that a strategy has counted, from begin to begin."""
    records = strategy.share_controller.step_records()
    return [
        after.began - record.began
        for record, after in itertools.pairwise(records)
        if record.trace == after.trace
    ]
