"""The last training steps of a run, step by step, in a ring on the host."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from evener.feedback.run_times import NUM_FIRST_STEPS, StepRecord

NUM_KEPT = 256
"""How many steps the ring holds."""

_HOST = "/device:CPU:0"


class StepHistory:
    """Keeps when steps began, their samples, and how long each device computed.

    Args:
        num_replicas: Of the plan.
        num_devices: That compute.
    """

    def __init__(self, num_replicas: int, num_devices: int) -> None:
        self._num_replicas = num_replicas
        self._num_traces = 0
        width = 2 + num_replicas + num_devices
        with tf.init_scope(), tf.device(_HOST):
            self._rows = tf.Variable(tf.zeros([NUM_KEPT, width], tf.float64), trainable=False)
            self._count = tf.Variable(tf.zeros([], tf.int64), trainable=False)

    def record(self, began: tf.Tensor, samples: tf.Tensor, busy: Sequence[tf.Tensor]) -> None:
        """Enter one step; part of the step's graph.

        Args:
            began: When its first part began, seconds in float64.
            samples: Of each replica, float64 of shape ``[num_replicas]``.
            busy: Seconds of each device, float64 scalars.
        """
        with tf.device(_HOST):
            trace = tf.constant(self._num_traces, tf.float64)
            row = tf.concat([[began, trace], samples, tf.stack(busy)], axis=0)
            place = tf.cast(self._count.read_value() % NUM_KEPT, tf.int32)
            self._rows.scatter_nd_update([[place]], [row])
            self._count.assign_add(1)
        self._num_traces += 1

    def records(self) -> list[StepRecord]:
        """Return the steps in the ring, oldest first, without the first steps of the run."""
        count, rows = int(self._count.numpy()), self._rows.numpy()
        end = 2 + self._num_replicas
        kept = [rows[k % NUM_KEPT] for k in range(max(count - NUM_KEPT, NUM_FIRST_STEPS, 0), count)]
        return [
            StepRecord(
                began=float(row[0]),
                samples=tuple(round(float(one)) for one in row[2:end]),
                busy_seconds=tuple(map(float, row[end:])),
                trace=int(row[1]),
            )
            for row in kept
        ]
