"""Times of the parts and spans of tasks, measured inside the step.

A task of a part runs from the arrival of its samples, or of tensors made of them, to the completion
of its results. Waits between two tasks do not count. The clock is read on the host; on a GPU, the
read waits for the work that it depends on. Tasks that are computed once, such as updates, are timed
without waiting for the clock: a late reading shortens the span.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.graphs import without_program_order
from evener.devices.names import canonical_device, device_name
from evener.graph.functions import TensorArgument
from evener.graph.ops.states import Sharded
from evener.partition.layout import HOST
from evener.partition.order import needs_of
from evener.partition.stage import is_gradient
from evener.partition.tasks import Partition, StepTask, TaskFunction

# Kinds of spans that no single part has: tasks that write variables, other tasks that are computed
# once, and steps that are timed as a whole.
UPDATE, ONCE, STEP = "update", "once", "step"
_HANDLES = (tf.resource, tf.variant)
_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanInfo:
    device: str  # Name of the device in the plan
    # ``"forward"``, ``"backward"``, ``"forward + backward"``, ``UPDATE``, ``ONCE`` or ``STEP``
    kind: str
    replica: int | None = None  # Number of the replica; None for a task that is computed once
    stage: int | None = None  # Number of the stage in its replica; None without stages
    micro_batch: int | None = None  # Number of the micro-batch in its replica; None if there is one
    after: tuple[int, ...] = ()  # Numbers of the spans whose results it needs
    joins: bool = False  # Whether it needs results of other workers, which have no spans here


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Measurements asked of a step."""

    counts: bool = False  # Whether the busy seconds of devices are measured too
    keeps_spans: bool = False  # Whether the begin and the end of every task are kept too
    # Function for benchmarks and tests that is called in a part's graph, on its device, with the
    # number of its replica and its samples; its result is computed within the part's time
    before_part: Callable[[int, tf.Tensor], tf.Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    samples: tf.Tensor | None = None  # Samples of all replicas, float64; None if not all were timed
    seconds: tf.Tensor | None = None  # Seconds of all replicas, float64
    began: tf.Tensor | None = None  # Begin of the step
    device_seconds: Mapping[str, tf.Tensor] = field(default_factory=dict)  # Busy, by device
    spans: tuple[SpanInfo, ...] = ()
    span_times: tf.Tensor | None = None  # Begins and ends of the spans, float64 of ``[2, n]``
    after: tuple[tf.Operation, ...] = ()  # What has to run before a step counts


@dataclass(frozen=True, slots=True)
class _Timed:
    function: TaskFunction
    part: int | None
    device: str
    begin: tf.Tensor
    end: tf.Tensor


class StepClock:
    """Clocks of one run of a step, while its graph is built.

    A replica of several stages takes as long as the device that takes longest.
    """

    def __init__(self, partition: Partition, sizes: Sequence[tf.Tensor], timing: Timing) -> None:
        self._partition, self._sizes, self._timing = partition, sizes, timing
        self._began: set[int] = set()
        # For each replica the begins and ends of its tasks, by device.
        self._busy: list[dict[str, list[tuple[tf.Tensor, tf.Tensor]]]] = [
            defaultdict(list) for _ in partition.layout.replicas
        ]
        self._timed: list[_Timed] = []
        self._functions: dict[StepTask, TaskFunction] = {}
        states = partition.sharding.states
        # Tensors that depend on the batch, and not on variables alone.
        self._of_samples = {t for t in partition.graph.inputs if isinstance(states[t], Sharded)}
        for node in partition.graph:
            if any(tensor in self._of_samples for tensor in node.inputs):
                self._of_samples.update(node.outputs)

    def start(
        self, function: TaskFunction, part: int, arguments: list[Any]
    ) -> tuple[tf.Tensor | None, list[Any]]:
        """Let a task of a part begin when the clock was read."""
        self._functions[function.task] = function
        waits = {
            index
            for index, argument in enumerate(function.builder.arguments)
            if isinstance(argument, TensorArgument) and argument.tensor in self._of_samples
        }
        if not waits:
            return None, arguments
        begin = _now([arguments[index] for index in sorted(waits)])
        before = [begin]
        if self._timing.before_part is not None and part not in self._began:
            with tf.control_dependencies(before):
                rows = tf.identity(self._sizes[part])
                before = [self._timing.before_part(self._replica(part), rows)]
        self._began.add(part)
        with tf.control_dependencies(before):
            # Otherwise a busy host could read the clock long after the task has begun.
            return begin, [tf.identity(a) if k in waits else a for k, a in enumerate(arguments)]

    def stop(
        self, function: TaskFunction, part: int, begin: tf.Tensor | None, results: Sequence[Any]
    ) -> None:
        """Read the clock when the results of a part's task are there.

        A call that hands nothing on has no end to see, and nobody waits for it.
        """
        if begin is not None and results:
            end = _now(results)
            self._busy[self._replica(part)][results[0].device].append((begin, end))
            device = self._partition.layout.device(part, function.task.place.stages)
            self._timed.append(_Timed(function, part, device, begin, end))

    def time_once(
        self, function: TaskFunction, device: str, awaited: Sequence[Any], ends: Sequence[Any]
    ) -> None:
        """Time a task that is computed once, if it waits for tensors and spans are kept."""
        self._functions[function.task] = function
        waits = [a for a in awaited if not tf.is_tensor(a) or a.dtype not in _HANDLES]
        is_timed = any(map(tf.is_tensor, waits)) and ends and not function.is_read_only
        if self._timing.keeps_spans and is_timed:
            begin, end = clock_after(waits, device), clock_after(ends, device)
            self._timed.append(_Timed(function, None, device, begin, end))

    def times(self, after: Sequence[tf.Operation]) -> StepTimes:
        times: dict[str, Any] = {"after": tuple(after)}
        # Parts of other workers have no times here.
        is_timed = all if self._partition.layout.group is None else any
        with tf.device(HOST), tf.control_dependencies(after):
            if is_timed(self._busy):
                by_replica: list[list[tf.Tensor]] = [[] for _ in self._busy]
                for part, size in enumerate(self._sizes):
                    by_replica[self._replica(part)].append(size)
                samples = [tf.add_n(sizes) for sizes in by_replica]
                times["samples"] = tf.cast(tf.stack(samples), tf.float64)
                seconds = [
                    tf.reduce_max([seconds_within(spans) for spans in by_device.values()])
                    if by_device
                    else tf.constant(0.0, tf.float64)
                    for by_device in self._busy
                ]
                times["seconds"] = tf.stack(seconds)
                if self._timing.counts:
                    times |= self._totals()
            if self._timing.keeps_spans and self._timed:
                begins = tf.stack([timed.begin for timed in self._timed])
                ends = tf.stack([timed.end for timed in self._timed])
                times |= {"spans": self._describe(), "span_times": tf.stack([begins, ends])}
        return StepTimes(**times)

    def _totals(self) -> dict[str, Any]:
        """Return the begin of the step, and the busy seconds of each device in all replicas."""
        by_device: dict[str, list[tuple[tf.Tensor, tf.Tensor]]] = defaultdict(list)
        for busy in self._busy:
            for device, spans in busy.items():
                by_device[canonical_device(device)] += spans
        begins = [begin for spans in by_device.values() for begin, _ in spans]
        return {
            "began": tf.reduce_min(tf.stack(begins)),
            "device_seconds": {name: seconds_within(spans) for name, spans in by_device.items()},
        }

    def _replica(self, part: int) -> int:
        return self._partition.layout.micro_batches[part].replica

    def _describe(self) -> tuple[SpanInfo, ...]:
        numbers: dict[StepTask, dict[int | None, int]] = defaultdict(dict)
        for number, timed in enumerate(self._timed):
            numbers[timed.function.task][timed.part] = number
        known: dict[tuple[StepTask, int | None], frozenset[int]] = {}

        def needed_by(function: TaskFunction, part: int | None) -> frozenset[int]:
            """Return the spans that a task needs, directly or through tasks that are not timed."""
            needed: set[int] = set()
            for task, is_same_part in needs_of(self._partition, function):
                key = task, part if is_same_part else None
                if task in numbers:
                    by_part = numbers[task]
                    needed |= {by_part[key[1]]} if key[1] in by_part else {*by_part.values()}
                    continue
                if key not in known:
                    other = self._functions.get(task)
                    known[key] = needed_by(other, key[1]) if other else frozenset()
                needed |= known[key]
            return frozenset(needed)

        return tuple(
            self._info(timed, tuple(sorted(needed_by(timed.function, timed.part))))
            for timed in self._timed
        )

    def _info(self, timed: _Timed, after: tuple[int, ...]) -> SpanInfo:
        layout, task = self._partition.layout, timed.function.task
        device = layout.name_in_plan(device_name(timed.device))
        if timed.part is None:
            kind = UPDATE if any(n.op.startswith(_WRITES) for n in task.nodes) else ONCE
            needed = needs_of(self._partition, timed.function)
            joins = layout.group is not None and any(other.is_parts for other, _ in needed)
            return SpanInfo(device=device, kind=kind, after=after, joins=joins)
        micro_batch = layout.micro_batches[timed.part]
        replica = layout.replicas[micro_batch.replica]
        passes = self._partition.passes
        names = {passes.get(n, "backward" if is_gradient(n) else "forward") for n in task.nodes}
        return SpanInfo(
            device=device,
            kind=" + ".join(sorted(names, reverse=True)),
            replica=micro_batch.replica,
            stage=task.place.stages[micro_batch.replica] if len(replica.stages) > 1 else None,
            micro_batch=micro_batch.number if replica.num_micro_batches > 1 else None,
            after=after,
        )


def seconds_within(spans: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> tf.Tensor:
    """Return the seconds that at least one of several spans covers.

    Tasks of one device may overlap: one waits while another computes.

    >>> float(seconds_within([(tf.constant(1.0), tf.constant(4.0)),
    ...                       (tf.constant(2.0), tf.constant(5.0)),
    ...                       (tf.constant(7.0), tf.constant(8.0))]))
    5.0
    """
    begins, ends = tf.stack([begin for begin, _ in spans]), tf.stack([end for _, end in spans])
    mine, other = begins[:, None], begins[None, :]
    # Of two that begin together, one is the first.
    is_first = np.tril(np.ones([len(spans), len(spans)], bool), -1)
    is_earlier = (other < mine) | ((other == mine) & is_first)
    # A span counts from where all that began before it are over.
    counts_from = tf.reduce_max(tf.where(is_earlier, ends[None, :], mine), axis=1)
    return tf.reduce_sum(tf.maximum(ends - counts_from, 0.0))


def _now(tensors: Sequence[Any]) -> tf.Tensor:
    """Read the clock once tensors are there; they are seen where they are read.

    The identities stay when a function's body is put in place of its call; a control
    dependency on the call itself would be dropped then.
    """
    return clock_after([tf.identity(tensor) for tensor in tensors], "", copies=False)


def clock_after(waits: Sequence[Any], device: str, *, copies: bool = True) -> tf.Tensor:
    """Read the clock once tensors are there and operations have run, in seconds."""
    # One message to the host from each device. Identities stay when functions are inlined.
    by_device: dict[str, list[Any]] = defaultdict(list)
    for wait in waits:
        by_device[wait.device or device].append(wait)
    done: list[Any] = []
    for name, ends in by_device.items():
        with tf.device(name):
            reached = [tf.identity(e) if copies and tf.is_tensor(e) else e for e in ends]
            with tf.control_dependencies(reached):
                done.append(tf.no_op())
    with tf.device(HOST), tf.control_dependencies(done):
        now = tf.timestamp()
    without_program_order(now.op)
    return now
