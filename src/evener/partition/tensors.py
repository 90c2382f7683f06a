"""Tensors of one run of a step, which are joined, split and combined for their readers.

    global batch of 512           shares 320 : 192
    |0 ....................... 320|320 .......... 512|
              part 0                    part 1

The cuts are those of `evener.plan.split_batch`, computed in the graph.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from evener.graph.dims import BATCH, PartSymbol, Size, evaluate
from evener.graph.nodes import Node, Tensor
from evener.graph.ops.states import (
    FIRST,
    Partial,
    PerPart,
    Sharded,
    State,
    Unset,
    known,
    numbers_of,
    rank_of,
    rows_per_sample,
    shape_of,
)
from evener.graph.rewrites import LOOPS
from evener.partition.collectives import Collectives
from evener.partition.layout import Layout
from evener.partition.tasks import HOST, Partition

# Tensor lists, which loops keep the values of their rounds in.


def element_dtype(tensor: Tensor) -> tf.DType:
    node = tensor.node
    if "element_dtype" in node.attrs:
        return tf.as_dtype(node.attrs["element_dtype"].type)
    if node.op in LOOPS:
        return element_dtype(node.inputs[tensor.index])
    for body in node.bodies.values():
        if len(body.outputs) > tensor.index and body.outputs[tensor.index].dtype == tf.variant:
            return element_dtype(body.outputs[tensor.index])
    return element_dtype(node.inputs[0])


# Least bytes of partial tensors that are combined across workers in one exchange, if as many
# are waited for together.
_BUCKET_BYTES = 4 << 20


def part_sizes_in_graph(num_samples: tf.Tensor, shares: Sequence[float] | tf.Tensor) -> tf.Tensor:
    """Return the samples of each part, int32 vector."""
    with tf.device(HOST):
        if isinstance(shares, tf.Tensor):
            cumulative = tf.cumsum(shares)
        else:
            cumulative = tf.constant(list(itertools.accumulate(shares)), tf.float64)
        ideal = tf.cast(num_samples, tf.float64) * cumulative / cumulative[-1]
        ends = tf.cast(tf.floor(ideal + 0.5), tf.int32)
        return ends - tf.concat([[0], ends[:-1]], 0)


def micro_batch_sizes(sizes: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
    micro_batches: list[tf.Tensor] = []
    of_replicas = tf.unstack(sizes, num=len(layout.replicas))
    for replica, size in zip(layout.replicas, of_replicas, strict=True):
        count = replica.num_micro_batches
        if count == 1:
            micro_batches.append(size)
        else:
            micro_batches.extend(tf.unstack(part_sizes_in_graph(size, [1.0] * count), num=count))
    return micro_batches


def rows_of_parts(sizes: Sequence[int], parts: Collection[int]) -> npt.NDArray[np.bool_]:
    """Return which samples of the batch belong to some of the parts.

    >>> rows_of_parts([2, 1, 1], [0, 2])
    array([ True,  True, False,  True])
    """
    return np.repeat([number in parts for number in range(len(sizes))], sizes)


def _split(whole: Any, sizes: Sequence[tf.Tensor], axis: int, rank: int) -> list[Any]:
    """Split a tensor along an axis.

    Not by `tf.split`: TensorFlow's graph optimizer gives wrong numbers for the maximum of a
    monotonic function of what was split.
    """
    parts, begin = [], tf.constant(0)
    for size in sizes:
        begins = [begin if k == axis else 0 for k in range(rank)]
        parts.append(tf.slice(whole, begins, [size if k == axis else -1 for k in range(rank)]))
        begin = begin + size
    return parts


COMBINE = {
    "sum": tf.add_n,
    "prod": lambda parts: functools.reduce(tf.multiply, parts),
    "max": lambda parts: functools.reduce(tf.maximum, parts),
    "min": lambda parts: functools.reduce(tf.minimum, parts),
    "all": lambda parts: functools.reduce(tf.logical_and, parts),
    "any": lambda parts: functools.reduce(tf.logical_or, parts),
}


class RunTensors:
    """Tensors that a run has computed so far, in the graph that is being built."""

    def __init__(
        self,
        partition: Partition,
        part_sizes: Sequence[tf.Tensor],
        given: Mapping[Tensor, Any],
        collectives: Collectives | None = None,
    ) -> None:
        self._partition = partition
        self._collectives = collectives
        self.wholes: dict[Tensor, Any] = dict(given)
        self.read_whole: set[Tensor] = set()
        self.parts: dict[tuple[Tensor, State], list[Any]] = {}
        self.sums: dict[tuple[Tensor, str], Any] = {}
        self._symbols: dict[str, tf.Tensor] = {}
        with tf.device(HOST):
            self.sizes = list(part_sizes)
            # Rows of each part, and of all parts before it.
            self._split_rows: dict[Size, tuple[list[Any], list[Any]]] = {
                BATCH: (self.sizes, _offsets(self.sizes))
            }
            self._total = tf.add_n(self.sizes)

    def number(self, name: str, part: int | None) -> tf.Tensor:
        if name == "B":
            return self._total
        if isinstance(name, PartSymbol):
            assert part is not None
            in_parts, before_parts = self.rows(name.rows)
            return before_parts[part] if name.is_offset else in_parts[part]
        if name not in self._symbols:
            source = self._partition.inference.symbols[name]
            with tf.device(HOST):
                if source.axis is None:
                    value = tf.reshape(self.whole(source.tensor, HOST), [-1])[source.index]
                else:
                    value = self._length(source.tensor, source.axis)
                self._symbols[name] = tf.cast(value, self._partition.inference.dtype_of(name))
        return self._symbols[name]

    def can_number(self, name: str) -> bool:
        """Return whether what a symbol is read from has been computed."""
        if name == "B" or name in self._symbols or isinstance(name, PartSymbol):
            return True
        source = self._partition.inference.symbols[name].tensor
        held = self._partition.sharding.states.get(source)
        return source in self.wholes or (held is not None and (source, held) in self.parts)

    def rows(self, rows: Size) -> tuple[list[Any], list[Any]]:
        if rows not in self._split_rows:
            with tf.device(HOST), tf.control_dependencies(None):
                # They are split as the samples are, so a part without samples has none of them.
                samples, count = tf.stack(self.sizes), len(self.sizes)
                first = tf.one_hot(0, count, dtype=tf.int32)
                shares = tf.where(tf.reduce_sum(samples) > 0, samples, first)
                split = part_sizes_in_graph(self._size(rows, tf.int32), tf.cast(shares, tf.float64))
                sizes = tf.unstack(split, num=count)
                self._split_rows[rows] = (sizes, _offsets(sizes))
        return self._split_rows[rows]

    def _length(self, tensor: Tensor, axis: int) -> Any:
        """Return the size of an axis that is the same in all parts.

        It is read from a part with samples: without any, some kernels give other sizes.
        """
        if tensor in self.wholes:
            return tf.shape(self.wholes[tensor])[axis]
        state, parts = next((s, parts) for (t, s), parts in self.parts.items() if t is tensor)
        rows = self.rows(state.rows if isinstance(state, Sharded) else BATCH)[0]
        own = [number for number, part in enumerate(parts) if part is not None]
        lengths = tf.stack([tf.shape(parts[number])[axis] for number in own])
        own_rows = tf.stack([rows[number] for number in own])
        length = lengths[tf.argmax(own_rows)]
        if self._collectives is None:
            return length
        length = tf.where(tf.reduce_max(own_rows) > 0, length, 0)
        return self._collectives.reduce([length], "max")[0]

    def whole(self, tensor: Tensor, device: str) -> Any:
        """Return a tensor as a whole, joined on a device if the parts hold it."""
        if tensor in self.wholes:
            self.read_whole.add(tensor)
            return self.wholes[tensor]
        with tf.device(device or HOST):
            if tensor.node.op == "Const":
                value: Any = tf.constant(tf.make_ndarray(tensor.node.attrs["value"].tensor))
            elif tensor.is_sizes:
                numbers = [self._size(size, tensor.dtype) for size in numbers_of(tensor)]
                vector = tf.stack(numbers) if numbers else tf.zeros([0], tensor.dtype)
                value = numbers[0] if tensor.rank == 0 else vector
            else:
                value = self._join(tensor)
        self.wholes[tensor] = value
        return value

    def _join(self, tensor: Tensor) -> Any:
        state = self._partition.sharding.states[tensor]
        parts = self.parts[tensor, state]
        if isinstance(state, Partial | PerPart):
            value = self._own_terms(tensor)
            if self._collectives is None:
                return value
            return self._collectives.reduce([_with_shape(value, tensor)], _combined_by(state))[0]
        if not isinstance(state, Sharded):
            return _own(parts)[0]
        join = self._join_lists if tensor.dtype == tf.variant else self._join_rows
        return join(tensor, state, parts)

    def _own_terms(self, tensor: Tensor) -> Any:
        """Return what the parts of this process have of a partial tensor, combined."""
        state = self._partition.sharding.states[tensor]
        parts = self.parts[tensor, state]
        if isinstance(state, PerPart):
            # The mean over samples: each worker returns its terms of it. A part without samples may
            # hold anything.
            weighted = []
            for part, size in self._with_rows(parts, BATCH):
                weight = tf.cast(size, part.dtype) / tf.cast(self._total, part.dtype)
                weighted.append(tf.where(size > 0, part * weight, tf.zeros_like(part)))
            return tf.add_n(weighted)
        assert isinstance(state, Partial)
        sums = [total for (other, _), total in self.sums.items() if other is tensor]
        own = sums or _own(parts)
        return COMBINE[state.combine](own) if len(own) > 1 else own[0]

    @functools.cached_property
    def _depths(self) -> dict[Node, int]:
        """The numbers of operations that each node waits for, each after another."""
        depths: dict[Node, int] = {}
        for node in self._partition.graph:
            before = (depths.get(tensor.node, 0) for tensor in node.inputs)
            depths[node] = 1 + max(before, default=0)
        return depths

    def combine_across(self, tensors: Iterable[Tensor]) -> None:
        """Combine partial tensors of all workers in few exchanges, before they are read."""
        assert self._collectives is not None
        states = self._partition.sharding.states
        kinds: dict[tuple[str, tf.DType], list[Tensor]] = {}
        for tensor in dict.fromkeys(tensors):
            state = states[tensor]
            is_partial = isinstance(state, Partial | PerPart) and (tensor, state) in self.parts
            if is_partial and tensor not in self.wholes:
                kinds.setdefault((_combined_by(state), tensor.dtype), []).append(tensor)
        for (combine, _), of_kind in kinds.items():
            # In the order in which they can be there: the gradients of the last layers come first,
            # and are exchanged while the backward pass goes on.
            bucket: list[Tensor] = []
            num_bytes = 0
            of_kind.sort(key=lambda t: self._depths[t.node])
            for tensor in of_kind:
                bucket.append(tensor)
                sizes = [size for size in tensor.shape or () if isinstance(size, int)]
                num_bytes += math.prod(sizes) * (tensor.dtype.size or 0)
                if num_bytes >= _BUCKET_BYTES or tensor is of_kind[-1]:
                    with tf.device(HOST):
                        own = [_with_shape(self._own_terms(tensor), tensor) for tensor in bucket]
                        combined = self._collectives.reduce(own, combine)
                    self.wholes.update(zip(bucket, combined, strict=True))
                    bucket, num_bytes = [], 0

    def _join_rows(self, tensor: Tensor, state: Sharded, parts: Sequence[Any]) -> Any:
        """Join the rows of the parts; of several blocks, block by block."""
        rank, axis = rank_of(tensor), state.axis
        if state.outer == 1:
            return self._with_other_workers(tf.concat(_own(parts), axis), axis, rank)
        # [outer, b, inner] of every part -> [outer, B, inner].
        outer = self._size(state.outer, tf.int32)
        per_sample = self._rows_per_sample(tensor, state)
        blocks = []
        for part, size in self._with_rows(parts, state.rows):
            front, _, behind = tf.split(tf.shape(part), [axis, 1, rank - axis - 1])
            shape = tf.concat([front, [outer, size * per_sample], behind], 0)
            blocks.append(tf.reshape(part, shape))
        joined = tf.concat(blocks, axis + 1)
        joined = self._with_other_workers(joined, axis + 1, rank + 1)
        front, rows, behind = tf.split(tf.shape(joined), [axis, 2, rank - axis - 1])
        return tf.reshape(joined, tf.concat([front, [rows[0] * rows[1]], behind], 0))

    def _with_other_workers(self, own: Any, axis: int, rank: int) -> Any:
        """Join the rows of this worker with those of the others."""
        if self._collectives is None:
            return own
        own.set_shape([None] * rank)
        return self._collectives.join_rows(own, axis)

    def _with_rows(self, parts: Sequence[Any], rows: Size) -> list[tuple[Any, Any]]:
        """Return the parts of this process, each with how many of some rows it has."""
        pairs = zip(parts, self.rows(rows)[0], strict=True)
        return [(part, size) for part, size in pairs if part is not None]

    def _join_lists(self, tensor: Tensor, state: Sharded, parts: Sequence[Any]) -> Any:
        """Join tensor lists element by element; of rows, one list behind the other."""
        dtype = element_dtype(tensor)
        if state.axis == 0 and self._collectives is None:
            joined = parts[0]
            for part in parts[1:]:
                joined = tf.raw_ops.TensorListConcatLists(
                    input_a=joined, input_b=part, element_dtype=dtype
                )
            return joined
        sizes = shape_of(tensor)
        shape: list[Any] = [size if isinstance(size, int) else -1 for size in sizes[1:]]
        per_sample = rows_per_sample(sizes[state.axis], state)
        stacked: list[Any] = []
        for part, rows in zip(parts, self.rows(state.rows)[0], strict=True):
            if part is None:
                stacked.append(None)
                continue
            sizes_of_part = list(shape)
            # A loop without rounds leaves its list empty, so the shape must be given.
            if state.axis > 0 and isinstance(per_sample, int) and isinstance(state.outer, int):
                sizes_of_part[state.axis - 1] = rows * (per_sample * state.outer)
            stacked.append(
                tf.raw_ops.TensorListStack(
                    input_handle=part,
                    element_shape=tf.convert_to_tensor(sizes_of_part, tf.int32),
                    element_dtype=dtype,
                )
            )
        return tf.raw_ops.TensorListFromTensor(
            tensor=self._join_rows(tensor, state, stacked),
            element_shape=tf.convert_to_tensor(shape, tf.int32),
        )

    def parts_of(self, tensor: Tensor, state: State) -> list[Any]:
        """Return the values of the parts in a state; a whole tensor is split."""
        if (tensor, state) not in self.parts:
            is_of_samples = state == FIRST and tensor.shape and tensor.shape[0] == BATCH
            is_cut = is_of_samples and tensor in self.wholes
            whole = self.wholes[tensor] if is_cut else self.whole(tensor, "")
            with tf.device(getattr(whole, "device", "") or HOST):
                self.parts[tensor, state] = self._split(tensor, state, whole)
        return self.parts[tensor, state]

    def _split(self, tensor: Tensor, state: State, whole: Any) -> list[Any]:
        count = len(self.sizes)
        if isinstance(state, Unset):
            return [whole] * count
        if isinstance(state, Partial):
            # Counted once: the other parts get the neutral element.
            if state.combine in ("sum", "prod"):
                neutral = tf.zeros_like if state.combine == "sum" else tf.ones_like
                return [whole] + [neutral(whole)] * (count - 1)
            return [whole] * count
        assert isinstance(state, Sharded)
        rank, axis = rank_of(tensor), state.axis
        per_sample = self._rows_per_sample(tensor, state)
        sizes = [size * per_sample for size in self.rows(state.rows)[0]]
        if state.outer == 1:
            return _split(whole, sizes, axis, rank)
        outer = self._size(state.outer, tf.int32)
        front, _, behind = tf.split(tf.shape(whole), [axis, 1, rank - axis - 1])
        rows = self._size(state.rows, tf.int32) * per_sample
        blocks = tf.reshape(whole, tf.concat([front, [outer, rows], behind], 0))
        parts = _split(blocks, sizes, axis + 1, rank + 1)
        return [
            tf.reshape(part, tf.concat([front, [outer * size], behind], 0))
            for part, size in zip(parts, sizes, strict=True)
        ]

    def _rows_per_sample(self, tensor: Tensor, state: Sharded) -> Any:
        """Return the rows of a sample in one block, also where there are no blocks: ``x * 0``."""
        return self._size(known(rows_per_sample(shape_of(tensor)[state.axis], state)), tf.int32)

    def _size(self, size: Size, dtype: tf.DType) -> Any:
        if isinstance(size, int):
            return tf.constant(size, dtype)
        # In one order on all workers: a number may have to be exchanged.
        names = dict.fromkeys(name for monomial in size.terms for name in monomial)
        values = {name: tf.cast(self.number(name, None), dtype) for name in names}
        return evaluate(size, values, tf.constant(1, dtype))


def _combined_by(state: State) -> str:
    return state.combine if isinstance(state, Partial) else "sum"


def _own(parts: Sequence[Any]) -> list[Any]:
    return [part for part in parts if part is not None]


def _with_shape(value: Any, tensor: Tensor) -> Any:
    if tensor.shape is not None:
        value.set_shape([size if isinstance(size, int) else None for size in tensor.shape])
    return value


def _offsets(sizes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return how many rows come before those of each part, int32 scalars."""
    return tf.unstack(tf.cumsum(tf.stack(sizes), exclusive=True), num=len(sizes))
