"""State of callbacks, their log files, and the history."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_ABSENT = object()


def plain_attributes(callback: Any) -> dict[str, Any]:
    """Return the attributes of a callback that are numbers or None."""
    found = {name: _plain(value) for name, value in vars(callback).items()}
    return {name: value for name, value in found.items() if value is not _ABSENT}


def name_callbacks(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return callbacks by a name of class and position, such as ``"0 EarlyStopping"``."""
    return {f"{index} {type(item).__name__}": item for index, item in enumerate(callbacks)}


def changed_attributes(
    callbacks: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the plain attributes of callbacks that are other than before.

    What a program has configured, such as ``patience``, stays as the program says.
    """
    return {
        name: {
            key: value
            for key, value in plain_attributes(callback).items()
            if before[name].get(key, _ABSENT) != value
        }
        for name, callback in callbacks.items()
    }


def set_attributes(callbacks: Mapping[str, Any], stored: Mapping[str, Mapping[str, Any]]) -> None:
    """Set attributes of callbacks that are still there."""
    for name, callback in callbacks.items():
        for key, value in stored.get(name, {}).items():
            setattr(callback, key, value)


def best_weights(callbacks: Mapping[str, Any]) -> dict[str, list[np.ndarray]]:
    """Return the best weights of each `keras.callbacks.EarlyStopping` that has some, by name."""
    stopping = keras.callbacks.EarlyStopping
    found = {n: item.best_weights for n, item in callbacks.items() if isinstance(item, stopping)}
    return {name: arrays for name, arrays in found.items() if arrays}


def log_lengths(callbacks: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes in the file of each `keras.callbacks.CSVLogger` so far, by name."""
    return {
        name: tf.io.gfile.stat(item.filename).length
        for name, item in callbacks.items()
        if isinstance(item, keras.callbacks.CSVLogger) and tf.io.gfile.exists(item.filename)
    }


def resume_logs(callbacks: Mapping[str, Any], lengths: Mapping[str, int], *, cuts: bool) -> None:
    """Let files of `keras.callbacks.CSVLogger` go on behind the rows that a checkpoint knows."""
    for name, length in lengths.items():
        logger: Any = callbacks.get(name)
        if not isinstance(logger, keras.callbacks.CSVLogger):
            continue
        logger.append = True
        if cuts and tf.io.gfile.exists(logger.filename):
            with tf.io.gfile.GFile(logger.filename, "rb") as file:
                rows = file.read(length)
            with tf.io.gfile.GFile(logger.filename, "wb") as file:
                file.write(rows)


class EpochLogs:
    """Logs of all epochs, as `keras.callbacks.History` has them."""

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        self._epochs: list[int] = list(stored["epochs"]) if stored else []
        logs = stored["logs"] if stored else {}
        self._logs: dict[str, list[Any]] = {name: list(values) for name, values in logs.items()}

    def add(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Add the logs of an epoch; values that are no numbers are left out."""
        self._epochs.append(epoch)
        for name, value in logs.items():
            plain = _plain(value)
            self._logs.setdefault(name, []).append(None if plain is _ABSENT else plain)

    def as_json(self) -> dict[str, Any]:
        """Return a copy of the logs as JSON has them, which is written while the fit goes on."""
        logs = {name: [*values] for name, values in self._logs.items()}
        return {"epochs": [*self._epochs], "logs": logs}

    def put_into(self, history: keras.callbacks.History) -> None:
        """Let a history have these epochs."""
        history.epoch = list(self._epochs)
        history.history = {name: list(values) for name, values in self._logs.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, numbers.Number) and hasattr(value, "item"):
        return value.item()  # pyright: ignore[reportAttributeAccessIssue]
    return _ABSENT
