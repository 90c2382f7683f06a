"""Shares of replicas as a variable, their measured times, and rebalancing.

The shares are a variable, so that they can change without a new trace. The step writes the time of
every replica into a ring on the host; every few steps the ring is read and the shares are
rebalanced (`evener.feedback.rebalance_shares`)::

    step  ──► ring of (samples, seconds) per replica ──► rebalance_shares ──► shares
                       every `WINDOW` steps

With several workers, each rebalances by the same times and from the same state, so all come to the
same shares. After a change of the members, all begin anew with the shares of one of them.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from evener.feedback import Rebalanced, ShareRebalancer, rebalance_shares
from evener.partition.memory import MemoryLimits
from evener.partition.tasks import HOST
from evener.partition.times import SpanInfo, StepTimes, Timing
from evener.planner.rebalancing import describe_changes, ideal_shares
from evener.planner.run_times import NUM_FIRST_STEPS, StepRecord
from evener.workers.group import Group
from evener.workers.messages import View

WINDOW = 8
"""Number of steps between two rebalancings."""

NUM_KEPT = 256
"""Number of the last steps that are kept."""

# The next step may write one more row while the others are read.
_NUM_ROWS = NUM_KEPT + 1
_LOG = logging.getLogger("evener")


def _zeros(name: str, sizes: list[int], dtype: Any = tf.float64, **options: Any) -> tf.Variable:
    """Return a variable on the host that begins with zeros."""
    with tf.init_scope(), tf.device(HOST):
        value = tf.zeros(sizes, dtype)
        return tf.Variable(value, trainable=False, name=f"evener_{name}", **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """Begin and end of every task of one step, in seconds."""

    number: int  # Of the step among those that were recorded, from 0
    trace: int  # Number of the traced step, from 0
    spans: tuple[SpanInfo, ...]
    times: tuple[tuple[float, float], ...]


class StepSpans:
    """Keeps the spans of the last step. A step writes them at its end, all at once."""

    def __init__(self) -> None:
        self._traces: list[tuple[SpanInfo, ...]] = []
        self._row = _zeros("spans", [0], shape=[None])
        self._count = _zeros("count", [], tf.int64)

    def record(self, spans: Sequence[SpanInfo], times: tf.Tensor) -> None:
        with tf.device(HOST):
            number = tf.cast(self._count.assign_add(1), tf.float64) - 1.0
            trace = tf.constant(len(self._traces), tf.float64)
            self._row.assign(tf.concat([[trace, number], tf.reshape(times, [-1])], axis=0))
        self._traces.append(tuple(spans))

    def last(self) -> RecordedStep | None:
        row = self._row.numpy()
        if not row.size:
            return None
        spans = self._traces[int(row[0])]
        begins, ends = row[2:].reshape([2, len(spans)])
        return RecordedStep(
            number=int(row[1]),
            trace=int(row[0]),
            spans=spans,
            # A clock of a task that is computed once may be read late.
            times=tuple((float(min(b, e)), float(e)) for b, e in zip(begins, ends, strict=True)),
        )


class StepHistory:
    """Keeps when the last steps began, their samples, and how long each device computed."""

    def __init__(self, num_replicas: int, num_devices: int) -> None:
        self._num_replicas = num_replicas
        self._num_traces = 0
        self._rows = _zeros("rows", [_NUM_ROWS, 2 + num_replicas + num_devices])
        self._count = _zeros("count", [], tf.int64)

    def record(self, began: tf.Tensor, samples: tf.Tensor, busy: Sequence[tf.Tensor]) -> None:
        with tf.device(HOST):
            trace = tf.constant(self._num_traces, tf.float64)
            row = tf.concat([[began, trace], samples, tf.stack(busy)], axis=0)
            index = tf.cast(self._count.read_value() % _NUM_ROWS, tf.int32)
            written = tf.raw_ops.ResourceScatterNdUpdate(
                ref=self._rows.handle, indices=[[index]], updates=[row]
            )
            # Only then, so that others may read the rows while steps run.
            with tf.control_dependencies([written]):
                self._count.assign_add(1)
        self._num_traces += 1

    def records(self) -> list[StepRecord]:
        """Return the steps, oldest first, without the first ones; while steps run too."""
        count, rows = int(self._count.numpy()), self._rows.numpy()
        # Steps that ended meanwhile have taken the places of the oldest ones.
        first = max(int(self._count.numpy()) - NUM_KEPT, NUM_FIRST_STEPS)
        end = 2 + self._num_replicas
        return [
            StepRecord(
                began=float(row[0]),
                samples=tuple(round(float(count)) for count in row[2:end]),
                busy_seconds=tuple(map(float, row[end:])),
                trace=int(row[1]),
            )
            for row in (rows[k % _NUM_ROWS] for k in range(first, count))
        ]


class ShareController:
    """Shares of a strategy's replicas, and the times of its steps."""

    def __init__(
        self,
        devices: Sequence[str],
        shares: Sequence[float],
        *,
        measured: bool,
        memory_bytes: Sequence[int | None] = (),
    ) -> None:
        self._devices = tuple(devices)
        # Replicas whose workers are there.
        self._there = tuple(range(len(devices)))
        self.memory_bytes = tuple(memory_bytes)
        self.is_measured = measured and len(devices) > 1
        # A hundredth at the least, so that a slow device goes on being measured.
        least = min(0.01, 0.5 / len(devices))
        self._rebalancer = ShareRebalancer(shares=tuple(shares), minimum_share=least)
        self._events: list[Rebalanced] = []
        self._lock = threading.Lock()
        # See `evener.partition.times.Timing`.
        self.before_part: Callable[[int, tf.Tensor], tf.Tensor] | None = None
        self._counted: tuple[str, ...] = ()
        self._spans: StepSpans | None = None
        with tf.init_scope(), tf.device(HOST):
            self.variable = tf.Variable(
                tf.constant(self._rebalancer.shares, tf.float64),
                trainable=False,
                name="evener_shares",
            )
        # Largest batch for which each step with memory limits has applied them.
        self._largest_batches = _zeros("largest", [0], tf.int32, shape=[None])
        self._steps = _zeros("steps", [], tf.int64)
        self._seconds = _zeros("seconds", [WINDOW, len(devices)])
        self._samples = _zeros("samples", [WINDOW, len(devices)])

    @property
    def shares(self) -> tuple[float, ...]:
        """The fractions in use; they add up to 1, and are 0 for replicas whose workers are gone."""
        shares = [0.0] * len(self._devices)
        for replica, share in zip(self._there, self._rebalancer.shares, strict=True):
            shares[replica] = share
        return tuple(shares)

    @property
    def events(self) -> tuple[Rebalanced, ...]:
        return tuple(self._events)

    def describe_changes(self) -> str:
        """Return one line about the changes of shares so far; empty if there were none."""
        if not self._events:
            return ""
        return describe_changes(len(self._events), self._events[-1].step, self._events[-1].after)

    @property
    def has_memory_limits(self) -> bool:
        """Whether shares are chosen by evener, for devices whose memory is limited."""
        return self.is_measured and any(size is not None for size in self.memory_bytes)

    def count(self, devices: Sequence[str]) -> None:
        """Count samples and busy seconds from the next traced step on, with one replica too."""
        self._counted = tuple(devices)
        self._total_samples = _zeros("totals", [len(self._devices)])
        self._busy_seconds = _zeros("totals", [len(devices)])
        self._history = StepHistory(len(self._devices), len(devices))

    @property
    def counts(self) -> bool:
        return bool(self._counted)

    def total_samples(self) -> tuple[int, ...]:
        """Return the samples that each replica has trained on since `count`."""
        return tuple(round(float(count)) for count in self._total_samples.numpy())

    def busy_seconds(self) -> dict[str, float]:
        """Return the seconds in which each device computed since `count`, by its name."""
        return dict(zip(self._counted, map(float, self._busy_seconds.numpy()), strict=True))

    def step_records(self) -> list[StepRecord]:
        """Return the last counted steps, with devices in the order that was given to `count`."""
        return self._history.records() if self._counted else []

    def keep_spans(self) -> None:
        """Keep the begin and the end of every task, from the next traced step on."""
        self._spans = self._spans or StepSpans()

    @property
    def keeps_spans(self) -> bool:
        return self._spans is not None

    def last_step(self) -> RecordedStep | None:
        return None if self._spans is None else self._spans.last()

    @property
    def timing(self) -> Timing:
        return Timing(
            counts=self.counts, keeps_spans=self.keeps_spans, before_part=self.before_part
        )

    def record_step(self, times: StepTimes) -> None:
        """Enter the times of a step; part of the step's graph."""
        with tf.device(HOST), tf.control_dependencies(times.after):
            samples = times.samples
            if samples is not None and times.seconds is not None:
                self.record_and_review(samples, times.seconds)
            if samples is not None and times.began is not None:
                seconds, zero = times.device_seconds, tf.constant(0.0, tf.float64)
                busy = [tf.cast(seconds.get(name, zero), tf.float64) for name in self._counted]
                self._total_samples.assign_add(samples)
                self._busy_seconds.assign_add(tf.stack(busy))
                self._history.record(times.began, samples, busy)
            if self._spans is not None and times.span_times is not None:
                self._spans.record(times.spans, times.span_times)

    def assign(self, shares: Sequence[float]) -> None:
        with self._lock:
            self._rebalancer = dataclasses.replace(
                self._rebalancer, shares=tuple(shares), doubted=None, trial=None
            )
            self.variable.assign(self._rebalancer.shares)

    def limit(self, maximum_shares: Sequence[float]) -> tuple[float, ...]:
        """Let no replica get more than a part of each batch from now on; return the shares."""
        with self._lock:
            before = self._rebalancer.maximum_shares or (1.0,) * len(self._devices)
            most = tuple(map(min, before, maximum_shares))
            least = self._rebalancer.minimum_share
            shares = self._rebalancer.shares
            if any(share > limit for share, limit in zip(shares, most, strict=True)):
                shares = ideal_shares(shares, minimum_share=least, maximum_shares=most)
                _LOG.info(
                    "shares of %s within their memory: %s",
                    ", ".join(self._devices),
                    " ".join(f"{share:.3f}" for share in shares),
                )
            is_same = shares == self._rebalancer.shares
            self._rebalancer = dataclasses.replace(
                self._rebalancer,
                shares=shares,
                maximum_shares=most,
                trial=self._rebalancer.trial if is_same else None,
            )
            return self._rebalancer.shares

    def shares_in_graph(self, num_samples: tf.Tensor, limits: MemoryLimits | None) -> tf.Tensor:
        """Return the shares in the graph that is being made, within memory limits."""
        if limits is None:
            return self.variable.read_value()
        # Variables cannot be made while a function is traced again; this one can grow.
        with tf.init_scope(), tf.device(HOST):
            index = int(tf.size(self._largest_batches))
            self._largest_batches.assign(tf.concat([self._largest_batches, [0]], 0))

        def limited(count: Any) -> npt.NDArray[np.float64]:
            return np.asarray(self.limit(limits.maximum_shares(int(count))))

        def limit_now() -> tf.Tensor:
            shares = tf.numpy_function(limited, [num_samples], tf.float64)
            assigned = self.variable.assign(tf.ensure_shape(shares, self.variable.shape))
            entered = self._largest_batches.scatter_nd_update([[index]], [num_samples])
            with tf.control_dependencies([entered]):
                return tf.identity(assigned)

        # Only a batch larger than those before needs more memory.
        with tf.device(HOST):
            largest = self._largest_batches.read_value()[index]
            return tf.cond(num_samples > largest, limit_now, self.variable.read_value)

    def limit_for(self, num_samples: int, limits: MemoryLimits | None) -> None:
        """Apply memory limits outside of graphs; see `shares_in_graph`."""
        if limits is not None and num_samples > limits.largest_batch:
            limits.largest_batch = num_samples
            self.variable.assign(self.limit(limits.maximum_shares(num_samples)))

    def record_and_review(self, samples: tf.Tensor, seconds: tf.Tensor) -> None:
        """Enter one step into the ring, and rebalance the shares after each window.

        Part of the step's graph: the shares are rebalanced while the step runs, because nothing of
        ours is called between two steps of Keras's ``fit``.
        """
        with tf.device(HOST):
            row = tf.cast(self._steps.read_value() % WINDOW, tf.int32)
            self._seconds.scatter_nd_update([[row]], [seconds])
            self._samples.scatter_nd_update([[row]], [samples])
            self._steps.assign_add(1)
            if not self.is_measured:
                return
            num_steps = self._steps.read_value()

            def rebalance() -> tf.Operation:
                ring = [num_steps, self._samples.read_value(), self._seconds.read_value()]
                shares = self.variable.read_value()
                rebalanced = tf.numpy_function(self._rebalance_in_step, [*ring, shares], tf.float64)
                return self.variable.assign(tf.ensure_shape(rebalanced, shares.shape)).op

            tf.cond(tf.equal(num_steps % WINDOW, 0), rebalance, tf.no_op)

    def _rebalance_in_step(
        self, num_steps: Any, samples: Any, seconds: Any, shares: Any
    ) -> npt.NDArray[np.float64]:
        number = int(num_steps)
        times = self._exchange_times(number, seconds)
        with self._lock:
            # A person may have set others meanwhile.
            if times is not None and tuple(shares) == self.shares:
                steps = last_steps(number, samples, times)
                own = [steps[replica] for replica in self._there]
                self._rebalancer, event = rebalance_shares(self._rebalancer, own, step=number)
                if event is not None:
                    self._events.append(event)
                    _LOG.info("rebalanced %s: %s", ", ".join(self._devices), event)
            return np.asarray(self.shares)

    def _exchange_times(self, num_steps: int, seconds: Any) -> Any | None:
        """Return the times of the replicas of all workers; None if one of them has died."""
        return seconds

    @property
    def num_steps(self) -> int:
        return int(self._steps.numpy())

    def last_steps(self) -> list[list[tuple[float, float]]]:
        """Return for each replica the (samples, seconds) of the last steps, oldest first."""
        return last_steps(self.num_steps, self._samples.numpy(), self._seconds.numpy())


def last_steps(num_steps: int, samples: Any, seconds: Any) -> list[list[tuple[float, float]]]:
    """Return the entries of the ring of each device, oldest first."""
    rows = [k % WINDOW for k in range(max(0, num_steps - WINDOW), num_steps)]
    return [
        [(float(samples[row, k]), float(seconds[row, k])) for row in rows]
        for k in range(samples.shape[1])
    ]


class SharesOfWorkers(ShareController):
    """Shares of the replicas of several workers; times are exchanged every `WINDOW` steps."""

    def __init__(
        self,
        devices: Sequence[str],
        shares: Sequence[float],
        *,
        measured: bool,
        group: Group,
        workers: Sequence[int],
    ) -> None:
        super().__init__(devices, shares, measured=measured)
        self._planned = self.shares
        self._group = group
        self.workers = tuple(workers)

    def assign(self, shares: Sequence[float]) -> None:
        """Use other shares from the next step on; those of replicas that are gone do not count."""
        with self._lock:
            self._begin_anew([shares[replica] for replica in self._there])

    def common_state(self) -> Mapping[str, Any]:
        return {"shares": self.shares, "steps": self.num_steps}

    def begin_with(self, state: Mapping[str, Any], view: View) -> None:
        """Begin anew with other members, with the `common_state` of one of them."""
        stays = [w in view.members and w not in view.joined for w in self.workers]
        planned = sum(p for p, is_there in zip(self._planned, stays, strict=True) if is_there)
        shares = state["shares"]
        present = sum(share for share, is_there in zip(shares, stays, strict=True) if is_there)
        scale = present / planned if planned and present else 1.0
        shares = [
            share if is_there and present else plan * scale
            for share, plan, is_there in zip(shares, self._planned, stays, strict=True)
        ]
        if self._group.index in view.joined:
            # The next window ends at the same step everywhere.
            self._steps.assign(state["steps"])
        with self._lock:
            self._there = tuple(k for k, w in enumerate(self.workers) if w in view.members)
            self._begin_anew([shares[replica] for replica in self._there])

    def _begin_anew(self, shares: Sequence[float]) -> None:
        if not sum(shares):
            shares = [1.0] * len(shares)
        least = min(self._rebalancer.minimum_share, 1.0 / len(shares))
        self._rebalancer = ShareRebalancer(shares=tuple(shares), minimum_share=least)
        self.variable.assign(self.shares)

    def _exchange_times(self, num_steps: int, seconds: Any) -> Any | None:
        times = np.asarray(seconds, np.float64)
        return self._group.reduce_if_there(f"times {num_steps}", times, "max")
