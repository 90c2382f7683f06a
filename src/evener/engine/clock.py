"""How long each replica takes, measured inside the step.

A replica's time runs from the moment its samples are there to the moment its last gradient
is. The clock is read on the host; on a GPU, the read waits for the work it depends on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from evener.engine.replica import ReplicaInput
from evener.engine.sharing import Sharing

if TYPE_CHECKING:
    from evener.engine.program import StepProgram

_HOST = "/device:CPU:0"


class Stopwatch:
    """Times the replicas of one step.

    Args:
        sharing: Where the times are recorded; it says whether they are wanted.
    """

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._begun: dict[int, tf.Tensor] = {}
        self._ended: dict[int, tf.Tensor] = {}

    def start(self, program: StepProgram, replica: int, given: ReplicaInput) -> ReplicaInput:
        """Start a replica's time when its samples are there; return its input."""
        with tf.device(program.devices[replica]):
            moved = given._replace(batch=keras.tree.map_structure(_identity, given.batch))
        if self._sharing.is_timed:
            leaves = tf.nest.flatten(moved.batch, expand_composites=True)
            self._begun[replica] = _now(leaves)
        if program.before_replica is not None:
            moved = _delayed(program, replica, moved)
        return moved

    def stop(self, replica: int, results: list[Any]) -> None:
        """Stop a replica's time when all of these are computed."""
        if self._sharing.is_timed:
            self._ended[replica] = _now(tf.nest.flatten(results, expand_composites=True))

    def record(self, inputs: list[ReplicaInput]) -> None:
        """Hand the times of all replicas over."""
        if not self._sharing.is_timed:
            return
        replicas = range(len(inputs))
        with tf.device(_HOST):
            seconds = tf.stack([self._ended[k] - self._begun[k] for k in replicas])
            samples = tf.stack([tf.cast(inputs[k].num_samples, tf.float64) for k in replicas])
        self._sharing.record(samples, seconds)


def _now(after: list[Any]) -> tf.Tensor:
    present = [tensor for tensor in after if tensor is not None]
    with tf.device(_HOST), tf.control_dependencies(present):
        return tf.timestamp()


def _identity(leaf: Any) -> Any:
    return None if leaf is None else tf.nest.map_structure(tf.identity, leaf, expand_composites=True)


def _delayed(program: StepProgram, replica: int, given: ReplicaInput) -> ReplicaInput:
    """Let a test's extra work run on the replica's device before the replica does."""
    assert program.before_replica is not None
    with tf.device(program.devices[replica]):
        work = program.before_replica(replica, given.num_samples)
        with tf.control_dependencies([work]):
            return given._replace(batch=keras.tree.map_structure(_identity, given.batch))
