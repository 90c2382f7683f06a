"""The devices of a pipeline take turns: what runs after what, and when weights are fetched.

::

    device      | stage 0 | stage 2 | stage 2 | stage 0 |
    turn             0         1         1         2
    weights          ^ those of turn 1 are fetched here

Where a stage's weights are on another device, or on the host, each of its turns fetches them anew:
they arrive while the turn before is computed, and those of two turns at most are on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener.engine.partition.tasks import Task


class _Device:
    """What a device has been given to do so far."""

    def __init__(self) -> None:
        self.last: list[tf.Operation] = []
        self.turn: Any = None
        # After these, the weights of the turn of now, and of the next one, may be fetched.
        self.fetch_after: list[tf.Operation] = []
        self.fetch_next_after: list[tf.Operation] = []
        self.fetched: dict[int, Any] = {}


class Turns:
    """The order of the calls on every device, kept by control dependencies."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def begin(self, device: str, task: Task) -> list[tf.Operation]:
        """Begin a call of a task on a device; return what it has to wait for."""
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
        """Return a tensor of another device, which is fetched for the turn of now."""
        state = self._devices[device]
        if not state.fetch_after:
            return value  # The first turns begin at once.
        if id(value) not in state.fetched:
            with tf.device(owner), tf.control_dependencies(state.fetch_after):
                state.fetched[id(value)] = tf.identity(value)
        return state.fetched[id(value)]
