"""Spans of a recorded step: begin and end of every task, and the tasks that it waited for.

The clocks of the parts are those of `times`. Tasks that are computed once, such as updates, are
timed here, without waiting for the clock: a late reading shortens the span.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from evener.devices.names import device_name
from evener.engine.partition.homes import HOST
from evener.engine.partition.span_info import ONCE, UPDATE, SpanInfo
from evener.engine.partition.tasks import Partition, Task, TaskFunction
from evener.engine.partition.times import Recorder, clock_after
from evener.engine.partition.units import needs_of
from evener.engine.pipeline.scopes import is_gradient

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
    """Spans of one run of a step, while its graph is built.

    Args:
        partition: The step.
    """

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
        """Time a task that is computed once, if it waits for tensors.

        Args:
            function: Function of the task.
            device: Its device.
            awaited: Arguments of its call, and operations that it waits for.
            ends: Results of the call, and the call itself if it has side effects.
        """
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
