"""Sums and joins across workers: each worker computes its own parts of the same step.

    worker 0   parts 0, 1 ──► sum of its own ─┐
                                              ├─ exchange ──► the same bits ──► commit ──► updates
    worker 1   part 2     ──► sum of its own ─┘  any may fail                   none can fail

Every worker adds the same exchanges in the same order. Each has a label, which holds a checksum of
the step: workers whose steps differ are noticed at the first exchange. Closing tasks, such as
updates of weights, are those that no exchange waits for: a worker has made the updates of a step or
none of them, and a step that a death breaks off is computed again from the same weights.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.tensors import dtype_of_variable
from evener.errors import EngineError
from evener.graph.draws import DRAWS
from evener.graph.nodes import Tensor
from evener.partition.layout import WorkerGroup
from evener.partition.order import needs_of
from evener.partition.tasks import HOST, Partition, TaskFunction

# Sums and joins across workers: each worker computes its own parts of the same step.
#
# ::
#
#     worker 0   parts 0, 1 ──► sum of its own ─┐
#                                               ├─ exchange ──► the same bits on every worker
#     worker 1   part 2     ──► sum of its own ─┘
#
# Every worker adds the same exchanges in the same order. Each has a label, which holds a checksum
# of
# the step: workers whose steps differ are noticed at the first exchange.


class Collectives:
    """Exchanges with the other workers in the graph that is being made, in one order."""

    def __init__(self, group: WorkerGroup, step: str) -> None:
        self._group = group
        self._step = step
        self._numbers = itertools.count()
        self._order = _order_of(group)

    def begin(
        self,
        written_early: Sequence[Any],
        batch: Sequence[Any],
        *,
        is_repeatable: bool,
        sizes: Sequence[Any],
        needed_rows: Callable[[Any], Any],
    ) -> None:
        """Begin the step."""
        dtypes = {id(handle): dtype_of_variable(handle) for handle in written_early}
        handles = [handle for handle in written_early if dtypes[id(handle)] is not None]
        begun = self._group.begin(
            handles, is_repeatable=is_repeatable and len(handles) == len(written_early)
        )
        values = [
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtypes[id(handle)])
            for handle in handles
        ]

        def begin(sizes: np.ndarray, *values: np.ndarray) -> None:
            begun(needed_rows(sizes), *values)

        self._in_order(begin, [tf.stack(list(sizes)), *values])
        shown = [tensor for tensor in batch if _is_carried(tensor.dtype, but=tf.string)]

        def compare() -> tf.Tensor:
            compared = self._group.compare
            return tf.numpy_function(lambda *arrays: compared(arrays), shown, tf.bool)

        with self._next():
            is_compared = tf.numpy_function(self._group.is_compared, [], tf.bool)
            done = tf.cond(tf.ensure_shape(is_compared, []), compare, lambda: tf.constant(True))
        self._follow([done])

    def so_far(self) -> tf.Operation:
        """Return an operation that runs behind the exchanges so far."""
        with tf.device(HOST):
            return self._order.read_value().op

    def commit(self) -> tf.Operation:
        """End the exchanges of the step; return the operation that its writes wait for."""
        return self._in_order(self._group.commit, [])

    def _in_order(self, call: Callable[..., None], values: Sequence[Any]) -> tf.Operation:
        """Add a call of Python between two exchanges."""

        def run(*arrays: np.ndarray) -> np.bool_:
            call(*arrays)
            return np.True_

        with self._next():
            done = tf.numpy_function(run, [*map(tf.identity, values)], tf.bool)
        self._follow([done])
        return done.op

    @contextlib.contextmanager
    def _next(self) -> Iterator[None]:
        """Run on the host, behind what touched the order before."""
        with tf.device(HOST), tf.control_dependencies([self._order.read_value()]):
            yield

    def _follow(self, done: Sequence[Any]) -> None:
        """Let what comes next wait: it reads what is written here."""
        with tf.control_dependencies(list(done)):
            self._order.assign_add(1)

    def reduce(self, values: Sequence[Any], combine: str) -> list[Any]:
        """Combine tensors of each worker, which have the same shapes everywhere."""
        for value in values:
            _check(value.dtype)

        def exchange(label: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
            return self._group.reduce(label, arrays, combine)

        return self._exchange(combine, exchange, values)

    def draw(self, values: Sequence[Any]) -> list[Any]:
        """Return random numbers that one of the workers has drawn, for all."""
        kernel = object()

        def exchange(label: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
            return self._group.draw(label, arrays, kernel)

        return self._exchange("draws", exchange, values)

    def join_rows(self, rows: Any, axis: int) -> Any:
        """Join the rows of all workers along an axis, in the order of the workers."""
        _check(rows.dtype, but=tf.string)

        def exchange(label: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
            gathered = self._group.gather(label, arrays[0])
            # Without rows, kernels give other sizes of the other axes.
            some = [array for array in gathered if array.shape[axis]]
            return [np.concatenate(some or gathered[:1], axis)]

        shape = rows.shape.as_list()
        shape[axis] = None
        return self._exchange(f"rows {axis}", exchange, [rows], [shape])[0]

    def _exchange(
        self,
        name: str,
        exchange: Callable[[str, list[np.ndarray]], list[np.ndarray]],
        values: Sequence[Any],
        shapes: Sequence[Any] = (),
    ) -> list[Any]:
        """Add the next exchange, on the host; results have the shapes of the values, or others."""
        label = f"{self._step} {next(self._numbers)} {name}"

        def run(*arrays: np.ndarray) -> list[np.ndarray]:
            return exchange(label, [*map(np.asarray, arrays)])

        with self._next():
            dtypes = [value.dtype for value in values]
            results = tf.numpy_function(run, [*map(tf.identity, values)], dtypes)
        self._follow(results)
        for result, shape in zip(results, shapes or [v.shape for v in values], strict=True):
            result.set_shape(shape)
        return list(results)


def _is_carried(dtype: tf.DType, but: tf.DType | None = None) -> bool:
    return dtype == but or (dtype.is_numpy_compatible and dtype not in (tf.string, tf.resource))


def _check(dtype: tf.DType, but: tf.DType | None = None) -> None:
    if not _is_carried(dtype, but):
        raise EngineError(
            "ENG-094",
            f"A tensor of type {dtype.name} would have to be joined or combined across workers.",
            why="Only numbers can be.",
            fix="Compute it outside of the step, or from numbers that the step returns.",
        )


@functools.cache
def _order_of(group: WorkerGroup) -> tf.Variable:
    """Return what all exchanges of the process touch: TensorFlow runs them in their order."""
    with tf.init_scope(), tf.device(HOST):
        return tf.Variable(tf.constant(0), trainable=False, name="order_of_exchanges")


def closing_tasks(partition: Partition, functions: Sequence[TaskFunction]) -> frozenset[int]:
    """Return the numbers of the tasks that no part needs, directly or through others.

    No exchange waits for them, such as updates of weights. So a worker has made the updates of a
    step or none of them, and a step that the death of another worker breaks off is computed again
    from the same weights. Variables that are written before, such as the states of random
    generators, are few; the step hands their values over before it begins.
    """
    tasks = [function.task for function in functions]
    number_of = {task: number for number, task in enumerate(tasks)}
    waiting = [n for n, task in enumerate(tasks) if task.is_parts or task.place.role == DRAWS]
    needed: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting.extend(number_of[t] for t, _ in needs_of(partition, functions[number]))
    return frozenset(range(len(functions))) - needed


def written_by(functions: Sequence[TaskFunction], but: Collection[int] = ()) -> tuple[Tensor, ...]:
    """Return the resources that tasks may write."""
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
