"""Turns of the stages on a device: the order of calls, and the fetches of weights for them.

::

    device      | stage 0 | stage 2 | stage 2 | stage 0 |
    turn             0         1         1         2
    weights          ^ those of turn 1 are fetched here

If another device or the host owns the weights of a stage, each of its turns fetches them anew: they
arrive while the turn before is computed, so a device holds those of two turns at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener.engine.partition.tasks import Task


class _Device:
    """State of a device: its current turn and its last call."""

    def __init__(self) -> None:
        self.last: list[tf.Operation] = []
        self.turn: Any = None
        # Operations after which weights of the current and of the next turn may be fetched.
        self.fetch_after: list[tf.Operation] = []
        self.fetch_next_after: list[tf.Operation] = []
        self.fetched: dict[int, Any] = {}


class Turns:
    """Order of the calls on every device, kept by control dependencies."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def begin(self, device: str, task: Task) -> list[tf.Operation]:
        """Begin a call of a task on a device; return the operations that it has to wait for."""
        state = self._devices.setdefault(device, _Device())
        if task.place.stages != state.turn:
            state.turn = task.place.stages
            state.fetch_after = state.fetch_next_after
            state.fetch_next_after = state.last
            state.fetched = {}
        return list(state.last)

    def end(self, device: str, done: Sequence[tf.Operation]) -> None:
        """End the call that was begun: the next one on the device comes after these."""
        if done:
            self._devices[device].last = list(done)

    def fetch(self, device: str, value: Any, owner: str) -> Any:
        """Return a tensor of another device, fetched for the current turn."""
        state = self._devices[device]
        if not state.fetch_after:
            return value  # The first turns begin at once.
        if id(value) not in state.fetched:
            with tf.device(owner), tf.control_dependencies(state.fetch_after):
                state.fetched[id(value)] = tf.identity(value)
        return state.fetched[id(value)]
