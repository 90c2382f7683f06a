"""Closing tasks: those that no exchange with other workers waits for, such as updates of weights.

::

    parts ──► sums of all workers ──► commit ──► updates
              any of them may fail               none can fail

So a worker has made the updates of a step or none of them, and a step that the death of another
worker breaks off is computed again from the same weights. Variables that are written before, such
as the states of random generators, are few; the step hands their values over before it begins.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

import tensorflow as tf

from evener.engine.partition.tasks import Partition, Task, TaskFunction
from evener.engine.partition.units import tasks_needed_by
from evener.engine.trace.draws import DRAWS
from evener.graph.nodes import Tensor


def closing_tasks(partition: Partition, functions: Sequence[TaskFunction]) -> frozenset[int]:
    """Return the numbers of the tasks that no part needs, directly or through others."""
    number_of: dict[Task, int] = {f.task: number for number, f in enumerate(functions)}
    waiting = [number for number, f in enumerate(functions) if _exchanges(f.task)]
    needed: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting.extend(number_of[t] for t in tasks_needed_by(partition, functions[number]))
    return frozenset(range(len(functions))) - needed


def _exchanges(task: Task) -> bool:
    return task.is_parts or task.place.role == DRAWS


def written_by(functions: Sequence[TaskFunction], but: Collection[int] = ()) -> tuple[Tensor, ...]:
    """Return the resources that tasks may write.

    Args:
        functions: Functions of the tasks.
        but: Numbers of tasks that do not count, such as closing ones.
    """
    written: dict[Tensor, None] = {}
    for number, function in enumerate(functions):
        if number in but or not function.is_stateful or function.is_read_only:
            continue
        for node in function.task.nodes:
            if node.has_side_effect:
                written.update((t, None) for t in node.inputs if t.dtype == tf.resource)
    return tuple(written)


def checksum_of(partition: Partition) -> str:
    """Return a checksum of a step: its operations and their symbolic shapes.

    Names do not count: they have the numbers of layers, and the chief may have made more of those.
    """
    checksum = 0
    for node in partition.graph:
        text = f"{node.op} {[str(tensor.shape) for tensor in node.outputs]}"
        checksum = zlib.crc32(text.encode(), checksum)
    return f"{checksum:08x}"
