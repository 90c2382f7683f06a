"""How long each replica takes, measured inside the step.

A replica's time runs from the moment its samples are there to the moment its last gradient
is. The clock is read on the host; on a GPU, the read waits for the work it depends on.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.engine.program import Program
from evener.engine.replica import ReplicaInput

_HOST = "/device:CPU:0"


class Stopwatch:
    """Times the replicas of one step.

    Args:
        program: The program whose replicas are timed; its strategy keeps the times.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._sharing = program.strategy.sharing
        self._begun: dict[int, tf.Tensor] = {}
        self._ended: dict[int, tf.Tensor] = {}

    def start(self, replica: int, given: ReplicaInput) -> ReplicaInput:
        """Start a replica's time when its samples are there; return its input."""
        device = self._program.devices[replica]
        moved = _after([], given, device)
        if self._sharing.is_timed:
            leaves = tf.nest.flatten(moved.batch, expand_composites=True)
            begun = _now(leaves, device)
            self._begun[replica] = begun
            # Else a busy host could read the clock long after the replica has begun.
            moved = _after([begun], moved, device)
        if self._program.before_replica is not None:
            with tf.device(device):
                work = self._program.before_replica(replica, given.num_samples)
            moved = _after([work], moved, device)
        return moved

    def stop(self, replica: int, results: list[Any]) -> None:
        """Stop a replica's time when all of these are computed."""
        if self._sharing.is_timed:
            tensors = tf.nest.flatten(results, expand_composites=True)
            self._ended[replica] = _now(tensors, self._program.devices[replica])

    def record(self, inputs: list[ReplicaInput]) -> None:
        """Hand the times of all replicas over."""
        if not self._sharing.is_timed:
            return
        replicas = range(len(inputs))
        with tf.device(_HOST):
            seconds = tf.stack([self._ended[k] - self._begun[k] for k in replicas])
            samples = tf.stack([tf.cast(inputs[k].num_samples, tf.float64) for k in replicas])
        self._sharing.record(samples, seconds)


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


def _after(first: list[tf.Tensor], given: ReplicaInput, device: str) -> ReplicaInput:
    """Return a replica's input on its device, there only once the tensors in ``first`` are."""
    with tf.device(device), tf.control_dependencies(first):
        batch = tf.nest.map_structure(_identity, given.batch, expand_composites=True)
    return given._replace(batch=batch)


def _identity(leaf: tf.Tensor | None) -> tf.Tensor | None:
    return None if leaf is None else tf.identity(leaf)
