"""Control dependencies that order the calls of a pipeline on each device, and its weight fetches.

TensorFlow runs operations in any order that their inputs allow. A pipeline needs the order of its
schedule, so each call on a device waits for the call before it on the same device.

A *turn* is a run of consecutive calls of the same stages on a device. If another device or the host
owns weights of a stage, the device copies (fetches) them for each turn anew, and frees them after
the turn. The copy for a turn waits until the turn before the previous one has ended::

    turn               |    0    |    1    |    2    |    3    |
    stage that runs    |    0    |    2    |    0    |    2    |
    weights copied for |  0, 1   |    2    |    3    |   ...      (turns)

So a copy runs while the device computes the previous turn, and a device holds the fetched weights
of at most two turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener.engine.partition.tasks import Task
from evener.engine.pipeline.layout import Stages


class _Device:
    """Current turn and last call of a device.

    Attributes:
        last: Results of its last call.
        stages: Stages whose turn it is.
        fetch_after: Operations that copies of weights for the current turn wait for.
        fetch_next_after: The same for the next turn.
        fetched: Weights that are copied for the current turn, by the identity of the original.
    """

    def __init__(self) -> None:
        self.last: list[tf.Operation] = []
        self.stages: Stages | None = None
        self.fetch_after: list[tf.Operation] = []
        self.fetch_next_after: list[tf.Operation] = []
        self.fetched: dict[int, Any] = {}


class Turns:
    """Order of the calls on every device of one step, while its graph is built."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def begin(self, device: str, task: Task) -> list[tf.Operation]:
        """Return the operations that the next call on a device waits for.

        Args:
            device: Device of the call.
            task: Task of the call; other stages than those of the last call begin a turn.
        """
        state = self._devices.setdefault(device, _Device())
        if task.place.stages != state.stages:
            state.stages = task.place.stages
            state.fetch_after = state.fetch_next_after
            state.fetch_next_after = state.last
            state.fetched = {}
        return list(state.last)

    def end(self, device: str, done: Sequence[tf.Operation]) -> None:
        """Record the results of a call, which the next call on the device waits for."""
        if done:
            self._devices[device].last = list(done)

    def fetch(self, device: str, value: Any, owner: str) -> Any:
        """Return a copy of weights for the current turn, made once; of the first two, the original.

        Args:
            device: Device that needs them, in a call that has begun.
            value: Weights on the device of their owner.
            owner: Device of the owner.
        """
        state = self._devices[device]
        if not state.fetch_after:
            return value  # Nothing to wait for: TensorFlow copies it when it can.
        if id(value) not in state.fetched:
            with tf.device(owner), tf.control_dependencies(state.fetch_after):
                state.fetched[id(value)] = tf.identity(value)
        return state.fetched[id(value)]
