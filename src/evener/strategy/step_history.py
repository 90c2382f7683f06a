"""The last training steps of a run, step by step, in a ring on the host."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from evener.engine.partition.homes import HOST
from evener.feedback.run_times import NUM_FIRST_STEPS, StepRecord

NUM_KEPT = 256
"""How many steps the ring holds."""
_NUM_ROWS = NUM_KEPT + 1
"""One more, which the next step may write while the others are read."""


class StepHistory:
    """Keeps when steps began, their samples, and how long each device computed.

    Args:
        num_replicas: Number of replicas.
        num_devices: Number of devices that compute.
    """

    def __init__(self, num_replicas: int, num_devices: int) -> None:
        self._num_replicas = num_replicas
        self._num_traces = 0
        width = 2 + num_replicas + num_devices
        with tf.init_scope(), tf.device(HOST):
            self._rows = tf.Variable(tf.zeros([_NUM_ROWS, width], tf.float64), trainable=False)
            self._count = tf.Variable(tf.zeros([], tf.int64), trainable=False)

    def record(self, began: tf.Tensor, samples: tf.Tensor, busy: Sequence[tf.Tensor]) -> None:
        """Enter one step; part of the step's graph.

        Args:
            began: Begin of its first part, seconds in float64.
            samples: Samples of each replica, float64 of shape ``[num_replicas]``.
            busy: Seconds of each device, float64 scalars.
        """
        with tf.device(HOST):
            trace = tf.constant(self._num_traces, tf.float64)
            row = tf.concat([[began, trace], samples, tf.stack(busy)], axis=0)
            place = tf.cast(self._count.read_value() % _NUM_ROWS, tf.int32)
            written = tf.raw_ops.ResourceScatterNdUpdate(
                ref=self._rows.handle, indices=[[place]], updates=[row]
            )
            # Only then, so that others may read the rows while steps run.
            with tf.control_dependencies([written]):
                self._count.assign_add(1)
        self._num_traces += 1

    def records(self) -> list[StepRecord]:
        """Return the steps in the ring, oldest first, without the first steps of the run.

        It may be called while steps run.
        """
        count, rows = int(self._count.numpy()), self._rows.numpy()
        # Steps that ended meanwhile have taken the places of the oldest ones.
        first = max(int(self._count.numpy()) - NUM_KEPT, NUM_FIRST_STEPS)
        end = 2 + self._num_replicas
        kept = [rows[k % _NUM_ROWS] for k in range(first, count)]
        return [
            StepRecord(
                began=float(row[0]),
                samples=tuple(round(float(count)) for count in row[2:end]),
                busy_seconds=tuple(map(float, row[end:])),
                trace=int(row[1]),
            )
            for row in kept
        ]
