"""Callback that follows a ``fit`` for the live view."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

from evener.recording.losses import scalars
from evener.report.live.display import losses_text

_LOSS_SECONDS = 1.0


class FitProgress(keras.callbacks.Callback):
    """Epoch, step and losses of a ``fit``, for a thread that reads them.

    To read losses waits for the step that runs, so they are read once a second.

    Args:
        say: Function that takes the line of a completed epoch.
        begin: Function that takes this callback when training begins.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        begin: Callable[[FitProgress], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._say = say
        self._begin = begin
        self._clock = clock
        self._read_at = float("-inf")
        self._first: tuple[float, int] | None = None
        self.is_training = False
        self.epoch = self.step = self._steps_before = 0
        self.num_steps: int | None = None
        self.losses: dict[str, float] = {}

    @property
    def num_epochs(self) -> int:
        """Number of epochs."""
        return int((self.params or {}).get("epochs") or 1)

    def seconds_left(self) -> float | None:
        """Return the seconds to the end of the last epoch; None if unknown."""
        if self._first is None or self.num_steps is None:
            return None
        began, first = self._first
        done = self._steps_before + self.step - first
        if done <= 0:
            return None
        steps_left = (self.num_epochs - self.epoch) * self.num_steps - self.step
        return max(0, steps_left) * (self._clock() - began) / done

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Begin."""
        self.is_training = True
        self.num_steps = (self.params or {}).get("steps")
        # Not when it is made: evaluation has the same callbacks.
        self._begin(self)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Begin an epoch."""
        self.epoch, self.step = epoch, 0
        self._began = self._clock()

    # Not on_train_batch_end: before it, Keras reads the logs of every batch.
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Take note of the step, and read the losses if that is due."""
        self.step = batch
        if batch == 0:
            return
        now = self._clock()
        if self._first is None:
            # The first step traces.
            self._first = now, self._steps_before + batch
        if now - self._read_at >= _LOSS_SECONDS:
            self._read_at = now
            self.losses = scalars(self.model.get_metrics_result())

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Write a line about the epoch, which stays, unless Keras writes the same."""
        steps_of_call = getattr(self.model, "steps_per_execution", 1) or 1
        num_steps = self.num_steps or self.step + steps_of_call
        self.num_steps = num_steps
        self._steps_before += num_steps
        self.epoch, self.step = epoch + 1, 0
        self.losses = scalars(logs or {})
        if (self.params or {}).get("verbose") == 2:
            return
        seconds = self._clock() - self._began
        text = [f"epoch {epoch + 1}/{self.num_epochs}", f"{seconds:.1f} s"]
        self._say("  ".join([*text, losses_text(self.losses)]))

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """End."""
        self.is_training = False
