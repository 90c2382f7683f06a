"""Sums and joins across workers: each worker computes its own parts of the same step.

    worker 0   parts 0, 1 ──► sum of its own ─┐
                                              ├─ exchange ──► the same bits ──► commit ──► updates
    worker 1   part 2     ──► sum of its own ─┘  any may fail                   none can fail

Every worker adds the same exchanges in the same order. Each has a label, which holds a checksum of
the step: workers whose steps differ are noticed at the first exchange. The mesh of the workers
carries them, over the memory of the hosts, or TensorFlow's own collective operations do, on GPUs by
NCCL.

Closing tasks, such as updates of weights, are those that no exchange waits for: a worker has made
the updates of a step or none of them, and a step that a death breaks off is computed again from the
same weights.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from evener._tf_private.tensors import dtype_of_variable
from evener.errors import EngineError
from evener.graph.draws import DRAWS
from evener.graph.nodes import Tensor
from evener.partition.order import needs_of
from evener.partition.tasks import HOST, Partition, TaskFunction

if TYPE_CHECKING:
    from evener._tf_private.collective_ops import CollectiveServer
    from evener.workers.group import Group


class Collectives:
    """Exchanges with the other workers in the graph that is being made, in one order.

    The mesh carries them: functions on the host, which are given arrays.
    """

    def __init__(self, group: Group, step: str) -> None:
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
    def _next(self, device: str = HOST) -> Iterator[None]:
        """Run on the host, or a device, behind what touched the order before."""
        with tf.device(HOST):
            before = self._order.read_value()
        with tf.device(device), tf.control_dependencies([before]):
            yield

    def _follow(self, done: Sequence[Any]) -> None:
        """Let what comes next wait: it reads what is written here."""
        with tf.device(HOST), tf.control_dependencies(list(done)):
            self._order.assign_add(1)

    def reduce(self, values: Sequence[Any], combine: str) -> list[Any]:
        """Combine tensors of each worker, which have the same shapes everywhere."""
        for value in values:
            _check(value.dtype)
        exchange = functools.partial(self._group.reduce, combine=combine)
        return self._exchange(combine, exchange, values)

    def draw(self, values: Sequence[Any]) -> list[Any]:
        """Return random numbers that one of the workers has drawn, for all."""
        exchange = functools.partial(self._group.draw, kernel=object())
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
        label = self._label(name)

        def run(*arrays: np.ndarray) -> list[np.ndarray]:
            return exchange(label, [*map(np.asarray, arrays)])

        with self._next():
            dtypes = [value.dtype for value in values]
            results = tf.numpy_function(run, [*map(tf.identity, values)], dtypes)
        self._follow(results)
        for result, shape in zip(results, shapes or [v.shape for v in values], strict=True):
            result.set_shape(shape)
        return list(results)

    def _label(self, name: str) -> str:
        return f"{self._step} {next(self._numbers)} {name}"


# Operation that combines two tensors, by the name of the mesh's.
_MERGES = {"sum": "Add", "prod": "Mul", "max": "Max", "min": "Min", "all": "Min", "any": "Max"}
# Types that TensorFlow's collectives know, and the one in which others go through them.
_CARRIED_AS = {
    **{dtype: dtype for dtype in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)},
    tf.bool: tf.int32,
}

_MIXING = 2654435761  # Multiplier of Knuth's hashing: sizes give keys far from each other


class TensorFlowCollectives(Collectives):
    """Exchanges that TensorFlow's collective operations carry, on one device of each worker.

    Size and key of their group are inputs of the step: other members trace nothing again. Types
    that the operations do not know go over the mesh.
    """

    def __init__(self, group: Group, step: str, server: CollectiveServer) -> None:
        super().__init__(group, step)
        self._server = server

    def begin(self, *args: Any, **kwargs: Any) -> None:
        super().begin(*args, **kwargs)
        with self._next():
            group = tf.numpy_function(
                lambda: self._group.begin_collectives(self._step), [], tf.int32
            )
        self._follow([group])
        self._size, self._key, self._is_chief = tf.unstack(tf.ensure_shape(group, [3]))

    def reduce(self, values: Sequence[Any], combine: str) -> list[Any]:
        dtype = values[0].dtype
        merge, carried = _MERGES[combine], _CARRIED_AS.get(dtype)
        if carried is None:
            return super().reduce(values, combine)
        with tf.device(self._server.device):
            flat = [tf.reshape(tf.cast(value, carried), [-1]) for value in values]
            if not any(value.shape.num_elements() for value in values):
                flat.append(tf.zeros([1], carried))  # TensorFlow's ring crashes at no element.
            whole = self._run(
                tf.raw_ops.CollectiveReduceV2,
                combine,
                input=tf.concat(flat, 0),
                ordering_token=[],
                merge_op=merge,
                final_op="Id",
            )
            parts = tf.split(whole, [tf.size(part) for part in flat], num=len(flat))
            results = [
                tf.cast(tf.reshape(part, tf.shape(value)), dtype)
                for part, value in zip(parts, values, strict=False)
            ]
        for result, value in zip(results, values, strict=True):
            result.set_shape(value.shape)
        return results

    def join_rows(self, rows: Any, axis: int) -> Any:
        """Join the rows of all workers along an axis, in the order of the workers.

        The operation joins as many rows of each: those of fewer are filled up.
        """
        dtype, carried = rows.dtype, _CARRIED_AS.get(rows.dtype)
        if carried is None:
            return super().join_rows(rows, axis)
        shape = rows.shape.as_list()
        with tf.device(self._server.device):
            others = [other for other in range(rows.shape.rank) if other != axis]
            first = tf.cast(tf.transpose(rows, [axis, *others]), carried)
            told = self._gather(tf.concat([[self._group.index], tf.shape(first)], 0), "sizes")
            # TensorFlow has an order of its own where there are more than ten.
            order = tf.argsort(told[:, 0])
            shapes = tf.gather(told[:, 1:], order)
            num_rows = shapes[:, 0]
            # Without rows, kernels give other sizes of the other axes.
            largest = shapes[tf.argmax(num_rows)]
            own_rows = tf.shape(first)[0]
            missing = tf.concat([largest[:1] - own_rows, largest[1:]], 0)
            first = tf.cond(own_rows > 0, lambda: first, lambda: tf.zeros(largest, carried)[:0])
            filled = tf.concat([first, tf.zeros(missing, carried)], 0)
            joined = tf.gather(self._gather(filled, f"rows {axis}"), order)
            own = tf.boolean_mask(joined, tf.sequence_mask(num_rows, largest[0]))
            back = [*range(1, axis + 1), 0, *range(axis + 1, rows.shape.rank)]
            result = tf.cast(tf.transpose(own, back), dtype)
        shape[axis] = None
        result.set_shape(shape)
        return result

    def _gather(self, value: Any, name: str) -> Any:
        """Return the tensors of all workers, of the same shape, along a new first axis."""
        flat = tf.concat([tf.reshape(value, [1, -1]), tf.zeros([1, 1], value.dtype)], 1)
        gathered = self._run(tf.raw_ops.CollectiveGatherV2, name, input=flat, ordering_token=[])
        gathered = tf.reshape(gathered[:, :-1], tf.concat([[self._size], tf.shape(value)], 0))
        gathered.set_shape([None, *value.shape])
        return gathered

    def _run(self, operation: Callable[..., Any], name: str, **arguments: Any) -> Any:
        of_group = self._group_arguments(self._label(name), arguments["input"])
        with self._next(self._server.device):
            result = operation(**arguments, **of_group)
        self._follow([result])
        return result

    def _group_arguments(self, label: str, value: Any) -> dict[str, Any]:
        # TensorFlow remembers the shape of each key: another size needs another one.
        number = zlib.crc32(label.encode()) + _MIXING * tf.size(value, tf.int64)
        return {
            "group_size": self._size,
            "group_key": self._key,
            "instance_key": tf.cast(number % tf.int32.max, tf.int32),
            "communication_hint": self._server.communication,
            "timeout_seconds": self._group.patience_seconds,
        }

    def draw(self, values: Sequence[Any]) -> list[Any]:
        if any(value.dtype not in _CARRIED_AS for value in values):
            return super().draw(values)
        kernel = object()

        def first_unused(*arrays: np.ndarray) -> list[np.ndarray]:
            return self._group.first_unused([*map(np.asarray, arrays)], kernel)

        with self._next():
            own = tf.numpy_function(
                first_unused, [*map(tf.identity, values)], [value.dtype for value in values]
            )
        self._follow(own)
        return [self._broadcast(*pair) for pair in zip(own, values, strict=True)]

    def _broadcast(self, own: Any, like: Any) -> Any:
        label = self._label("draws")
        flat = tf.reshape(tf.cast(own, _CARRIED_AS[like.dtype]), [-1])
        carried = tf.concat([flat, tf.zeros([1], flat.dtype)], 0)
        of_group = self._group_arguments(label, carried)

        def send() -> Any:
            return tf.raw_ops.CollectiveBcastSendV2(input=carried, **of_group)

        def receive() -> Any:
            return tf.raw_ops.CollectiveBcastRecvV2(
                T=carried.dtype, shape=tf.shape(carried), **of_group
            )

        with self._next(self._server.device):
            result = tf.cond(self._is_chief > 0, send, receive)
        self._follow([result])
        result = tf.cast(tf.reshape(result[:-1], tf.shape(like)), like.dtype)
        result.set_shape(like.shape)
        return result


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
def _order_of(group: Group) -> tf.Variable:
    """Return what all exchanges of the process touch: TensorFlow runs them in their order."""
    with tf.init_scope(), tf.device(HOST):
        return tf.Variable(tf.constant(0), trainable=False, name="evener_exchanges")


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
