"""Losses and metrics of Keras's ``fit``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras

from evener.recording.pace import Pace


class Losses(keras.callbacks.Callback):
    """Callback that passes losses and metrics on, now and then, and at the end of each epoch.

    To read them waits for the step that runs, so most steps are not read.

    Args:
        emit: Function that takes the fields of a line.
        clock: Function that returns the seconds since the start of the record.
        pace: Pace of readings.
    """

    def __init__(
        self,
        emit: Callable[[Mapping[str, Any]], None],
        clock: Callable[[], float],
        pace: Pace,
    ) -> None:
        super().__init__()
        self._emit, self._clock, self._pace = emit, clock, pace
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Take note of the epoch."""
        self._epoch = epoch

    # Not on_train_batch_end: before it, Keras reads the logs of every batch.
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Read the losses and metrics if that is due."""
        if batch and self._pace.is_due(self._clock()):
            self._write(self.model.get_metrics_result(), batch)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Pass the losses and metrics of the epoch on."""
        self._write(logs or {}, None)

    def _write(self, logs: Mapping[str, Any], batch: int | None) -> None:
        values = written_values(logs)
        found = {"time": round(self._clock(), 3), "epoch": self._epoch, "values": values}
        self._emit(found if batch is None else {**found, "batch": batch})


def written_values(logs: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the single numbers of logs for JSON, which has none that are not finite: as text."""
    return {
        name: float(f"{value:.6g}") if math.isfinite(value) else str(value)
        for name, value in scalars(logs).items()
    }


def scalars(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the logs that are single numbers."""
    numbers: dict[str, float] = {}
    for name, value in logs.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            # A log of several numbers, such as one F1 score for each class.
            continue
    return numbers
