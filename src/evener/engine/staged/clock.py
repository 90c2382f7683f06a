"""How long each replica takes, measured inside the step.

A replica's time runs from the moment its samples are there to the moment its last gradient
is. The clock is read on the host; on a GPU, the read waits for the work it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from evener import _tf_private

if TYPE_CHECKING:
    from evener.engine.sharing import Sharing
    from evener.engine.staged.program import Program
    from evener.engine.staged.replica import ReplicaInput

_HOST = "/device:CPU:0"


class Times:
    """The times of the replicas of one step.

    Args:
        sharing: Keeps the times.
        devices: TensorFlow's name of each replica's device.
    """

    def __init__(self, sharing: Sharing, devices: Sequence[str]) -> None:
        self._sharing = sharing
        self._devices = devices
        self._begun: dict[int, tf.Tensor] = {}
        self._ended: dict[int, tf.Tensor] = {}

    def begin(self, replica: int, batch: Any) -> Any:
        """Start a replica's time when its nested batch is there; return it on its device."""
        device = self._devices[replica]
        moved = _after([], batch, device)
        if not self._sharing.is_timed:
            return moved
        begun = _now(tf.nest.flatten(moved, expand_composites=True), device)
        self._begun[replica] = begun
        # Else a busy host could read the clock long after the replica has begun.
        return _after([begun], moved, device)

    def stop(self, replica: int, results: list[Any]) -> None:
        """Stop a replica's time when all of these are computed."""
        if self._sharing.is_timed:
            tensors = tf.nest.flatten(results, expand_composites=True)
            self._ended[replica] = _now(tensors, self._devices[replica])

    def hand_over(self, num_samples: Sequence[tf.Tensor]) -> None:
        """Hand the times of all replicas over, with the samples of each, int32 scalars."""
        if not self._sharing.is_timed:
            return
        with tf.device(_HOST):
            seconds = tf.stack([self._ended[k] - self._begun[k] for k in range(len(num_samples))])
            samples = tf.stack([tf.cast(count, tf.float64) for count in num_samples])
        self._sharing.record(samples, seconds)


class Stopwatch(Times):
    """Times the replicas of one step of a program.

    Args:
        program: The program whose replicas are timed; its strategy keeps the times.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program.strategy.sharing, program.devices)

    def start(self, replica: int, given: ReplicaInput) -> ReplicaInput:
        """Start a replica's time when its samples are there; return its input."""
        return given._replace(batch=self.begin(replica, given.batch))

    def record(self, inputs: list[ReplicaInput]) -> None:
        """Hand the times of all replicas over."""
        self.hand_over([given.num_samples for given in inputs])


def _now(after: list[Any], device: str) -> tf.Tensor:
    """Read the clock once these tensors are there.

    The identities stay when a function's body is put in place of its call; a control
    dependency on the call itself would be dropped then.
    """
    with tf.device(device):
        reached = [tf.identity(tensor) for tensor in after if tensor is not None]
    with tf.device(_HOST), tf.control_dependencies(reached):
        now = tf.timestamp()
    if not tf.executing_eagerly():
        _tf_private.without_program_order(now.op)
    return now


def _after(first: list[tf.Tensor], batch: Any, device: str) -> Any:
    """Return a nested batch on its device, there only once the tensors in ``first`` are."""
    with tf.device(device), tf.control_dependencies(first):
        return tf.nest.map_structure(_identity, batch, expand_composites=True)


def _identity(leaf: tf.Tensor | None) -> tf.Tensor | None:
    return None if leaf is None else tf.identity(leaf)
