"""Plain attributes of callbacks, and the history, as JSON values."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import keras

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

    Args:
        callbacks: Callbacks by name.
        before: Their plain attributes at the beginning, by name.
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
    """Set attributes of callbacks that are still there.

    Args:
        callbacks: Callbacks by name.
        stored: Attributes by name, as `changed_attributes` returned them.
    """
    for name, callback in callbacks.items():
        for key, value in stored.get(name, {}).items():
            setattr(callback, key, value)


class EpochLogs:
    """Logs of all epochs, as `keras.callbacks.History` has them.

    Args:
        stored: Value of `as_json` of an earlier run; None for none.
    """

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
        """Return the logs as JSON has them."""
        return {"epochs": self._epochs, "logs": self._logs}

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
