"""The shares while training: where the graph reads them, and what it measures.

The shares are a variable, so that they can change without a new trace. The step writes
the time of every replica into a small ring on the host; every few steps the ring is read
and the shares are rebalanced (`evener.plan.rebalance_shares`).

      step  ──► ring of (samples, seconds) per replica ──► rebalance_shares ──► shares
                         every `WINDOW` steps
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from evener.plan import Rebalanced, ShareRebalancer, rebalance_shares

WINDOW = 8
"""Steps between two looks at the measured times."""

# One window of eight steps is enough for a device that lost a third of its speed; less may
# be a disturbance, and waits for a second window.
_AT_ONCE = 0.3
_LOG = logging.getLogger("evener")
_HOST = "/device:CPU:0"


class Sharing:
    """The shares of a strategy's replicas, and their times.

    Args:
        devices: Names of the replicas' devices, for the log.
        shares: Relative shares to begin with.
        measured: Whether the shares are rebalanced by the measured times.

    Attributes:
        before_part: See `evener.engine.partition.times.Recorder`.
    """

    def __init__(self, devices: Sequence[str], shares: Sequence[float], *, measured: bool) -> None:
        self._devices = tuple(devices)
        self._measured = measured and len(devices) > 1
        # A hundredth at the least, so that a slow device goes on being measured.
        self._least = min(0.01, 0.5 / len(devices))
        self._rebalancer = ShareRebalancer(
            shares=tuple(shares), minimum_share=self._least, at_once=_AT_ONCE
        )
        self._events: list[Rebalanced] = []
        self._lock = threading.Lock()
        self.before_part: Callable[[int, tf.Tensor], tf.Tensor] | None = None
        shape = [WINDOW, len(devices)]
        self._counted: tuple[str, ...] = ()
        with tf.init_scope(), tf.device(_HOST):
            self.variable = tf.Variable(
                tf.constant(self._rebalancer.shares, tf.float64),
                trainable=False,
                name="evener_shares",
            )
            self._steps = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="evener_steps")
            self._seconds = tf.Variable(tf.zeros(shape, tf.float64), trainable=False)
            self._samples = tf.Variable(tf.zeros(shape, tf.float64), trainable=False)

    @property
    def shares(self) -> tuple[float, ...]:
        """The fractions in use; they add up to 1."""
        return self._rebalancer.shares

    @property
    def events(self) -> tuple[Rebalanced, ...]:
        """Every change of shares so far, the newest last."""
        return tuple(self._events)

    @property
    def is_measured(self) -> bool:
        """Whether the shares are rebalanced by the measured times."""
        return self._measured

    @property
    def is_timed(self) -> bool:
        """Whether steps measure their replicas; one replica has nothing to be rebalanced with."""
        return len(self._devices) > 1

    def count(self, devices: Sequence[str]) -> None:
        """Count samples and busy seconds from the next traced step on, with one replica too.

        Args:
            devices: TensorFlow's names of the devices that compute, such as ``"/device:GPU:0"``.
        """
        self._counted = tuple(devices)
        with tf.init_scope(), tf.device(_HOST):
            self._total_samples = tf.Variable(
                tf.zeros([len(self._devices)], tf.float64), trainable=False
            )
            self._busy_seconds = tf.Variable(tf.zeros([len(devices)], tf.float64), trainable=False)

    @property
    def counts(self) -> bool:
        """Whether samples and busy seconds are counted."""
        return bool(self._counted)

    def total_samples(self) -> tuple[int, ...]:
        """Return the samples that each replica has trained on since `count`."""
        return tuple(round(float(one)) for one in self._total_samples.numpy())

    def busy_seconds(self) -> dict[str, float]:
        """Return the seconds in which each device computed since `count`, by its name."""
        return dict(zip(self._counted, map(float, self._busy_seconds.numpy()), strict=True))

    def record_totals(self, samples: tf.Tensor, seconds: Mapping[str, tf.Tensor]) -> None:
        """Add a step to the totals; part of the step's graph.

        Args:
            samples: Samples of each replica, float64 of shape ``[num_replicas]``.
            seconds: Busy seconds of each device in the step, float32 or float64 scalars.
        """
        zero = tf.constant(0.0, tf.float64)
        by_device = [tf.cast(seconds.get(name, zero), tf.float64) for name in self._counted]
        with tf.device(_HOST):
            self._total_samples.assign_add(samples)
            self._busy_seconds.assign_add(tf.stack(by_device))

    def assign(self, shares: Sequence[float]) -> None:
        """Use other shares from the next step on."""
        with self._lock:
            self._rebalancer = dataclasses.replace(
                self._rebalancer, shares=tuple(shares), doubted=None
            )
            self.variable.assign(self._rebalancer.shares)

    def record(self, samples: tf.Tensor, seconds: tf.Tensor) -> None:
        """Enter one step into the ring; part of the step's graph.

        Args:
            samples: Samples of each replica, float64 vector.
            seconds: Time of each replica, float64 vector.
        """
        with tf.device(_HOST):
            row = tf.cast(self._steps.read_value() % WINDOW, tf.int32)
            self._seconds.scatter_nd_update([[row]], [seconds])
            self._samples.scatter_nd_update([[row]], [samples])
            self._steps.assign_add(1)

    def record_and_review(self, samples: tf.Tensor, seconds: tf.Tensor) -> None:
        """Enter one step into the ring, and even the shares after each window; see `record`.

        The shares are rebalanced while the step runs, because nothing of ours is called between two
        steps of Keras's ``fit``.
        """
        self.record(samples, seconds)
        if not self._measured:
            return
        with tf.device(_HOST):
            num_steps = self._steps.read_value()

            def even() -> tf.Operation:
                ring = [num_steps, self._samples.read_value(), self._seconds.read_value()]
                shares = self.variable.read_value()
                rebalanced = tf.numpy_function(self._rebalance_in_step, [*ring, shares], tf.float64)
                return self.variable.assign(tf.ensure_shape(rebalanced, shares.shape)).op

            tf.cond(tf.equal(num_steps % WINDOW, 0), even, tf.no_op)

    def _rebalance_in_step(
        self, num_steps: Any, samples: Any, seconds: Any, shares: Any
    ) -> npt.NDArray[np.float64]:
        """Return the shares from the next step on."""
        with self._lock:
            if tuple(shares) != self._rebalancer.shares:
                return np.asarray(self._rebalancer.shares)  # a person has set others meanwhile
            self._even(int(num_steps), _last_steps(int(num_steps), samples, seconds))
            return np.asarray(self._rebalancer.shares)

    @property
    def num_steps(self) -> int:
        """How many training steps were timed."""
        return int(self._steps.numpy())

    def last_steps(self) -> list[list[tuple[float, float]]]:
        """Return for each replica the (samples, seconds) of the last steps, oldest first."""
        return _last_steps(self.num_steps, self._samples.numpy(), self._seconds.numpy())

    def _even(self, num_steps: int, steps: list[list[tuple[float, float]]]) -> None:
        self._rebalancer, event = rebalance_shares(self._rebalancer, steps, step=num_steps)
        if event is not None:
            self._events.append(event)
            _LOG.info("rebalanced %s: %s", ", ".join(self._devices), event)


def _last_steps(num_steps: int, samples: Any, seconds: Any) -> list[list[tuple[float, float]]]:
    """Return what a ring holds, oldest first, for each device."""
    rows = [k % WINDOW for k in range(max(0, num_steps - WINDOW), num_steps)]
    return [
        [(float(samples[row, k]), float(seconds[row, k])) for row in rows]
        for k in range(samples.shape[1])
    ]
