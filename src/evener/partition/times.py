"""Times of the parts and spans of tasks, measured inside the step.

A task of a part runs from the arrival of its samples, or of tensors made of them, to the
completion of its results. Waits between two tasks do not count. The clock is read
on the host; on a GPU, the read waits for the work that it depends on. Tasks that are computed once,
such as updates, are timed without waiting for the clock: a late reading shortens the span.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from evener._tf_private.graphs import without_program_order
from evener.devices.names import canonical_device, device_name
from evener.partition.order import needs_of
from evener.partition.stage import is_gradient
from evener.partition.tasks import HOST, Partition, Task, TaskFunction

# Description of a span: which task a device computed, and what it waited for.

UPDATE, ONCE, STEP = "update", "once", "step"
"""Kinds of spans that no single part has: tasks that write variables, other tasks that are computed
once, and steps that are timed as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanInfo:
    """Static description of a span."""

    device: str  # Name of the device in the plan
    # ``"forward"``, ``"backward"``, ``"forward + backward"``, ``"weights"``, ``UPDATE``, ``ONCE``
    # or ``STEP``
    kind: str
    replica: int | None = None  # Number of the replica; None for a task that is computed once
    stage: int | None = None  # Number of the stage in its replica; None without stages
    micro_batch: int | None = None  # Number of the micro-batch in its replica; None if there is one
    after: tuple[int, ...] = ()  # Numbers of the spans whose results it needs
    joins: bool = False  # Whether it needs results of other workers, which have no spans here


# Times of the parts, measured inside the step.
#
# A task of a part runs from the arrival of its samples, or of tensors made of them, to the
# completion of its results. Waits between two tasks do not count. The clock is read
# on the host; on a GPU, the read waits for the work that it depends on.


class Recorder(Protocol):
    """Recorder of the times of steps."""

    # Function for benchmarks and tests that is called in a part's graph, on its device, with the
    # number of its replica and its samples; its result is computed within the part's time
    before_part: Callable[[int, tf.Tensor], tf.Tensor] | None

    @property
    def counts(self) -> bool:
        """Whether it takes the totals of devices too."""
        ...

    @property
    def keeps_spans(self) -> bool:
        """Whether it takes the begin and the end of every task too."""
        ...

    def record_and_review(self, samples: tf.Tensor, seconds: tf.Tensor) -> None:
        """Take the samples and the seconds of all replicas, two float64 vectors."""
        ...

    def record_totals(
        self, began: tf.Tensor, samples: tf.Tensor, seconds: Mapping[str, tf.Tensor]
    ) -> None:
        """Take the begin of a step, the samples of all replicas, and the seconds of devices."""
        ...

    def record_spans(self, spans: Sequence[SpanInfo], times: tf.Tensor) -> None:
        """Take the spans of a step and their begins and ends, float64 of shape ``[2, n]``."""
        ...


class Times:
    """Times of the replicas in one run.

    A replica of several stages takes as long as the device that takes longest.
    """

    def __init__(
        self,
        sizes: Sequence[tf.Tensor],
        replicas: Sequence[int],
        recorder: Recorder,
        *,
        some: bool = False,
    ) -> None:
        self._some = some
        self._sizes = sizes
        self._replicas = replicas
        self._began: set[int] = set()
        self._spans: list[dict[str, list[tuple[tf.Tensor, tf.Tensor]]]] = [
            {} for _ in range(max(replicas) + 1)
        ]
        self._recorder = recorder

    def timed(
        self,
        part: int,
        call: Callable[[list[Any]], list[Any]],
        arguments: list[Any],
        waits: Sequence[int],
        note: Callable[[tf.Tensor, tf.Tensor], None] | None = None,
    ) -> list[Any]:
        """Call a task of a part and time it."""
        begin = _now([arguments[index] for index in waits])
        before = [begin]
        replica = self._replicas[part]
        if self._recorder.before_part is not None and part not in self._began:
            with tf.control_dependencies(before):
                before = [self._recorder.before_part(replica, tf.identity(self._sizes[part]))]
        self._began.add(part)
        with tf.control_dependencies(before):
            # Otherwise a busy host could read the clock long after the task has begun.
            started = {index: tf.identity(arguments[index]) for index in waits}
        results = call([started.get(k, argument) for k, argument in enumerate(arguments)])
        # A call that hands nothing on has no end to see, and nobody waits for it.
        if results:
            end = _now(results)
            self._spans[replica].setdefault(results[0].device, []).append((begin, end))
            if note is not None:
                note(begin, end)
        return results

    def hand_over(self) -> None:
        """Hand the times over."""
        if not (any(self._spans) if self._some else all(self._spans)):
            return
        with tf.device(HOST):
            of_replicas: list[list[tf.Tensor]] = [[] for _ in self._spans]
            for size, replica in zip(self._sizes, self._replicas, strict=True):
                of_replicas[replica].append(size)
            samples = [tf.add_n(sizes) for sizes in of_replicas]
            seconds = [
                tf.reduce_max([seconds_within(spans) for spans in of_devices.values()])
                if of_devices
                else tf.constant(0.0, tf.float64)
                for of_devices in self._spans
            ]
            counted = tf.cast(tf.stack(samples), tf.float64)
            self._recorder.record_and_review(counted, tf.stack(seconds))
            if self._recorder.counts:
                begins = [begin for of_devices in self._spans for begin in _begins(of_devices)]
                began = tf.reduce_min(tf.stack(begins))
                self._recorder.record_totals(began, counted, self._seconds_of_devices())

    def _seconds_of_devices(self) -> dict[str, tf.Tensor]:
        """Return the busy seconds of each device, for all replicas together."""
        spans: dict[str, list[tuple[tf.Tensor, tf.Tensor]]] = {}
        for of_devices in self._spans:
            for device, of_device in of_devices.items():
                spans.setdefault(canonical_device(device), []).extend(of_device)
        return {device: seconds_within(of_device) for device, of_device in spans.items()}


def _begins(spans: Mapping[str, Sequence[tuple[tf.Tensor, tf.Tensor]]]) -> list[tf.Tensor]:
    return [begin for of_device in spans.values() for begin, _ in of_device]


def seconds_within(spans: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> tf.Tensor:
    """Return the seconds that at least one of several spans covers.

    Tasks of one device may overlap: one waits while another computes.
    """
    begins, ends = tf.stack([begin for begin, _ in spans]), tf.stack([end for _, end in spans])
    mine, other = begins[:, None], begins[None, :]
    # Of two that begin together, one is the first.
    is_first = np.tril(np.ones([len(spans), len(spans)], bool), -1)
    is_earlier = (other < mine) | ((other == mine) & is_first)
    # A span counts from where all that began before it are over.
    counts_from = tf.reduce_max(tf.where(is_earlier, ends[None, :], mine), axis=1)
    return tf.reduce_sum(tf.maximum(ends - counts_from, 0.0))


def _now(after: Sequence[Any]) -> tf.Tensor:
    """Read the clock once these tensors are there.

    The identities stay when a function's body is put in place of its call; a control
    dependency on the call itself would be dropped then.
    """
    reached = [tf.identity(tensor) for tensor in after]
    # One message to the host from each device, and not one for every tensor.
    of_device: dict[str, list[tf.Tensor]] = {}
    for tensor in reached:
        of_device.setdefault(tensor.device, []).append(tensor)
    done = []
    for device, tensors in of_device.items():
        with tf.device(device), tf.control_dependencies(tensors):
            done.append(tf.no_op())
    return read_clock(done)


def clock_after(waits: Sequence[Any], device: str) -> tf.Tensor:
    """Read the clock once tensors are there and operations have run, on a device or elsewhere."""
    # One message to the host from each device. Identities stay when functions are inlined.
    of_device: dict[str, list[Any]] = {}
    for wait in waits:
        of_device.setdefault(wait.device or device, []).append(wait)
    done: list[Any] = []
    for name, ends in of_device.items():
        with tf.device(name):
            reached = [tf.identity(end) if tf.is_tensor(end) else end for end in ends]
            with tf.control_dependencies(reached):
                done.append(tf.no_op())
    return read_clock(done)


def read_clock(after: Sequence[Any]) -> tf.Tensor:
    """Read the clock of the host once operations have run, in seconds."""
    with tf.device(HOST), tf.control_dependencies(after):
        now = tf.timestamp()
    without_program_order(now.op)
    return now


# Spans of a recorded step: begin and end of every task, and the tasks that it waited for.
#
# The clocks of the parts are those of `times`. Tasks that are computed once, such as updates, are
# timed here, without waiting for the clock: a late reading shortens the span.

Note: TypeAlias = Callable[[tf.Tensor, tf.Tensor], None]
"""Function that takes the begin and the end of a task."""

_HANDLES = (tf.resource, tf.variant)
_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")


@dataclass(frozen=True, slots=True)
class _Timed:
    function: TaskFunction
    part: int | None
    device: str
    begin: tf.Tensor
    end: tf.Tensor


class Spans:
    """Spans of one run of a step, while its graph is built."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._timed: list[_Timed] = []
        self._functions: dict[Task, TaskFunction] = {}

    def note(self, function: TaskFunction) -> None:
        """Take note of a task, which others may wait for."""
        self._functions[function.task] = function

    def add(
        self,
        function: TaskFunction,
        part: int | None,
        device: str,
        begin: tf.Tensor,
        end: tf.Tensor,
    ) -> None:
        """Add the span of a task of a part, or of a task that is computed once."""
        self._timed.append(_Timed(function, part, device, begin, end))

    def time_once(
        self, function: TaskFunction, device: str, awaited: Sequence[Any], ends: Sequence[Any]
    ) -> None:
        """Time a task that is computed once, if it waits for tensors."""
        waits = [a for a in awaited if not tf.is_tensor(a) or a.dtype not in _HANDLES]
        if any(map(tf.is_tensor, waits)) and ends and not function.is_read_only:
            begin, end = clock_after(waits, device), clock_after(ends, device)
            self.add(function, None, device, begin, end)

    def hand_over(self, recorder: Recorder) -> None:
        """Hand the spans over; part of the step's graph."""
        if not self._timed:
            return
        with tf.device(HOST):
            begins = tf.stack([timed.begin for timed in self._timed])
            ends = tf.stack([timed.end for timed in self._timed])
            recorder.record_spans(self._described(), tf.stack([begins, ends]))

    def _described(self) -> list[SpanInfo]:
        numbers: dict[Task, dict[int | None, int]] = {}
        for number, timed in enumerate(self._timed):
            numbers.setdefault(timed.function.task, {})[timed.part] = number
        needed = _Needed(self._partition, self._functions, numbers)
        return [self._info(timed, needed.by(timed.function, timed.part)) for timed in self._timed]

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
        return SpanInfo(
            device=device,
            kind=self._pass_of(task),
            replica=micro_batch.replica,
            stage=task.place.stages[micro_batch.replica] if len(replica.stages) > 1 else None,
            micro_batch=micro_batch.number if replica.num_micro_batches > 1 else None,
            after=after,
        )

    def _pass_of(self, task: Task) -> str:
        passes = self._partition.staged.passes
        names = {passes.get(n, "backward" if is_gradient(n) else "forward") for n in task.nodes}
        # The gradients of weights are a pass of their own only if they are alone.
        names = names if names == {"weights"} else {n.replace("weights", "backward") for n in names}
        return " + ".join(sorted(names, reverse=True))


class _Needed:
    """Spans that tasks need, directly or through tasks that are not timed."""

    def __init__(
        self,
        partition: Partition,
        functions: Mapping[Task, TaskFunction],
        numbers: Mapping[Task, Mapping[int | None, int]],
    ) -> None:
        self._partition, self._functions, self._numbers = partition, functions, numbers
        self._known: dict[tuple[Task, int | None], frozenset[int]] = {}

    def by(self, function: TaskFunction, part: int | None) -> tuple[int, ...]:
        found: set[int] = set()
        for task, same_part in needs_of(self._partition, function):
            found |= self._of(task, part if same_part else None)
        return tuple(sorted(found))

    def _of(self, task: Task, part: int | None) -> frozenset[int]:
        timed = self._numbers.get(task)
        if timed is not None:
            return frozenset([timed[part]] if part in timed else timed.values())
        if (task, part) not in self._known:
            function = self._functions.get(task)
            self._known[task, part] = frozenset(self.by(function, part) if function else ())
        return self._known[task, part]
