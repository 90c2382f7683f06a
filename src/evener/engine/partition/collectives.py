"""Sums and joins across workers: each worker computes its own parts of the same step.

::

    worker 0   parts 0, 1 ──► sum of its own ─┐
                                              ├─ ring ──► the same bits on every worker
    worker 1   part 2     ──► sum of its own ─┘

Every worker adds the same collectives in the same order, so that their keys agree. A collective
pins the number of elements of its key at its first run: where the batch is in the shape, the number
is part of the key.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.partition.homes import HOST
from evener.engine.pipeline.layout import WorkerGroup
from evener.errors import EngineError

_GROUP_KEY = 7_000
"""Key of the group of all workers; TensorFlow's strategies count theirs from 1."""
_LARGEST_CALL = 2**15
_SIZES_PER_KEY = 2**16
_PRIME = 65_521
"""Number of different sizes that one call tells apart: the largest prime below 2^16."""
_MERGES = {"sum": "Add", "prod": "Mul", "max": "Max", "min": "Min", "all": "Min", "any": "Max"}
_REDUCED = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_GATHERED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_calls = itertools.count(1)


class Collectives:
    """Collectives in the graph that is being made, in one order.

    Args:
        group: The workers.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group

    def reduce(self, value: Any, combine: str) -> Any:
        """Combine a tensor of each worker, of one shape.

        Args:
            value: The tensor of this worker.
            combine: ``"sum"``, ``"max"``, ``"min"``, ``"prod"``, ``"all"`` or ``"any"``.

        Returns:
            The same bits on every worker.
        """
        if value.dtype.is_complex:
            if combine == "sum":
                parts = tf.stack([tf.math.real(value), tf.math.imag(value)])
                real, imaginary = tf.unstack(self.reduce(parts, combine), num=2)
                return tf.complex(real, imaginary)
            found = self._gather(tf.reshape(value, [1, -1]))
            rows = tf.unstack(found, num=self._group.count)
            return tf.reshape(functools.reduce(tf.multiply, rows), tf.shape(value))
        if value.dtype == tf.uint64 and combine in ("max", "min"):
            # As int64, large numbers would be negative.
            raise _not_carried(value.dtype)
        sent = value if value.dtype in _REDUCED else tf.cast(value, _carrier_of(value.dtype))
        shape = sent.shape if sent.shape.is_fully_defined() else tf.shape(sent)
        found = self._with_all(
            tf.raw_ops.CollectiveReduceV2,
            tf.reshape(sent, [-1]),
            merge_op=_MERGES[combine],
            final_op="Id",
        )
        return tf.cast(tf.reshape(found, shape), value.dtype)

    def join_rows(self, rows: Any, counts: Sequence[Any], axis: int) -> Any:
        """Join the rows of all workers along an axis, in the order of the workers.

        Args:
            rows: The rows of this worker.
            counts: Number of rows of each worker, int32 scalars.
            axis: The axis of the rows.
        """
        rank = rows.shape.rank
        front = [axis, *(k for k in range(rank) if k != axis)]
        back = [front.index(k) for k in range(rank)]
        first = tf.transpose(rows, front) if axis else rows
        # Collectives gather as many rows of each worker.
        most = tf.reduce_max(tf.stack(counts))
        missing = most - counts[self._group.index]
        padded = tf.pad(first, [[0, missing], *([0, 0] for _ in range(rank - 1))])
        shape = tf.shape(padded)
        found = tf.reshape(
            self._gather(tf.reshape(padded, [1, -1])), tf.concat([[self._group.count], shape], 0)
        )
        joined = tf.concat([found[k, :count] for k, count in enumerate(counts)], 0)
        return tf.transpose(joined, back) if axis else joined

    def _gather(self, flat: Any) -> Any:
        """Return the rows of all workers; each has one, of the same number of elements."""
        if flat.dtype.is_complex:
            real, imaginary = self._gather(tf.math.real(flat)), self._gather(tf.math.imag(flat))
            return tf.complex(real, imaginary)
        sent = flat if flat.dtype in _GATHERED else tf.cast(flat, _carrier_of(flat.dtype))
        return tf.cast(self._with_all(tf.raw_ops.CollectiveGatherV2, sent), flat.dtype)

    def _with_all(self, collective: Callable[..., Any], sent: Any, **options: str) -> Any:
        """Add the next collective of all workers, on the host."""
        with tf.device(HOST):
            return collective(
                input=sent,
                group_size=self._group.count,
                group_key=_GROUP_KEY,
                instance_key=_key(sent),
                ordering_token=[_order().handle],
                communication_hint="ring",
                timeout_seconds=self._group.timeout_seconds,
                **options,
            )


def _carrier_of(dtype: tf.DType) -> tf.DType:
    """Return a type that collectives have, and that holds all values of another."""
    if dtype == tf.bfloat16:
        return tf.float32
    if dtype == tf.bool or (dtype.is_integer and dtype.size <= 2):
        return tf.int32
    if dtype.is_integer:
        return tf.int64
    raise _not_carried(dtype)


def _not_carried(dtype: tf.DType) -> EngineError:
    return EngineError(
        "ENG-094",
        f"A tensor of type {dtype.name} would have to be joined or combined across workers.",
        why="TensorFlow's collectives carry numbers.",
        fix="Compute it outside of the step, or from numbers that the step returns.",
    )


def _key(flat: Any) -> Any:
    """Return the key of the next collective, for the number of elements of a tensor."""
    call = next(_calls)
    if call >= _LARGEST_CALL:
        raise EngineError(
            "ENG-095",
            f"The program has traced more than {_LARGEST_CALL} collectives across workers.",
            why="Each has a key of its own, and TensorFlow's keys have 32 bits.",
            fix="Trace fewer steps: let one tf.function serve several sizes, for example.",
        )
    count = flat.shape.num_elements()
    size = tf.size(flat) % _PRIME if count is None else count % _PRIME
    return tf.constant(call * _SIZES_PER_KEY) + size


@functools.cache
def _order() -> tf.Variable:
    """Return what all collectives of the process touch: TensorFlow runs them in their order."""
    with tf.init_scope(), tf.device(HOST):
        return tf.Variable(tf.constant(0), trainable=False, name="order_of_collectives")
