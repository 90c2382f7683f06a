"""Batches of which each worker maps its own rows only, and the others when it needs them.

::

    elements    0   1   2   3   4   5   6   7        every worker reads all of them
                │   │   │   │                        worker 0 maps these
    batch      [a   b   c   d   0   0   0   0]
    worker 1 dies: the same batch is computed again
    batch      [a   b   c   d   e   f   g   h]       worker 0 maps the rest, from the elements

A batch keeps the elements that it is made of. So whichever rows a step needs are there, also when
the shares change, or when a worker dies: which rows those are is known when the step begins, and it
is begun again if some are missing.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from evener._tf_private.datasets import CannotSplitError, Compute, LastMaps
from evener._tf_private.fits import data_kind
from evener._tf_private.tensors import plain_variable
from evener.partition.shard import is_row_wise

Rows = npt.NDArray[np.bool_]
"""Which rows of a batch are meant: one value for each."""

_HOST = "/device:CPU:0"


class RowsMissing(Exception):
    """A step needs rows of its batch that were not mapped."""


class OwnRowsOfPipelines:
    """Iterables that Keras is given instead of the datasets of a job.

    ``own_rows`` returns the rows that this worker computes of a batch with so many, ``is_late``
    whether this worker does not compute yet.
    """

    def __init__(self, own_rows: Callable[[int], Rows], *, is_late: Callable[[], bool]) -> None:
        self._own_rows, self._is_late = own_rows, is_late
        self._obstacle: str | None = None
        self._made: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()

    def iterable_of(self, epochs: Any, dataset: Any, *, only_steps_read: bool) -> Any:
        """Return the dataset, or batches of own rows, for Keras's iterator of the epochs."""
        for_dataset, found = self._made.get(epochs, (None, None))
        if for_dataset is not dataset:
            found = self._make(epochs, dataset)
            self._made[epochs] = dataset, found
        if only_steps_read and isinstance(found, OwnRowsPipeline):
            return iter(found).of_own_rows()
        return found

    def _make(self, epochs: Any, dataset: Any) -> Any:
        if data_kind(epochs) != "dataset":
            self._obstacle = "only pipelines of tf.data can map some rows of a batch"
            return dataset
        try:
            pipeline = LastMaps.of(dataset, is_row_wise)
        except CannotSplitError as error:
            self._obstacle = str(error)
            return dataset
        self._obstacle = None
        return OwnRowsPipeline(pipeline, maps_first=not self._is_late(), own_rows=self._own_rows)

    def explain(self) -> str:
        """Return what the workers do with the data that was iterated last, as a clause."""
        if self._obstacle is None:
            return "every worker reads all elements, and maps its own rows"
        return f"every worker reads whole batches, because of its pipeline: {self._obstacle}"


class OwnRowsPipeline:
    """Pipeline whose batches have the rows that this worker needs.

    With ``maps_first``, rows are mapped before a step has said which ones it needs. ``own_rows``
    returns the rows that this worker computes of a batch with so many.
    """

    def __init__(
        self, pipeline: LastMaps, *, maps_first: bool, own_rows: Callable[[int], Rows]
    ) -> None:
        self._pipeline, self._own_rows = pipeline, own_rows
        self._needed = np.full(pipeline.batch_size, maps_first)
        self._needs_all = True
        with tf.init_scope(), tf.device(_HOST):
            self._selected = plain_variable(self._needed, tf.bool)
        self._batches = self._make()

    def __iter__(self) -> OwnRowsIterator:
        return OwnRowsIterator(self, iter(self._batches))

    def expected(self, count: int) -> Rows:
        """Return the rows that a step is likely to need of a batch with so many."""
        if self._needs_all:
            return np.ones(count, np.bool_)
        own = self._own_rows(count)
        return own | self._needed if count == len(self._needed) else own

    def note_needed(self, needed: Rows) -> None:
        """Take note of the rows that a step has needed: the next batches have the same ones."""
        self._needs_all = bool(needed.all()) and not self._own_rows(len(needed)).all()
        if len(needed) == len(self._needed) and (needed != self._needed).any():
            self._needed = needed
            self._selected.assign(needed)

    def map_rows(self, elements: list[Any]) -> list[Any]:
        with tf.device(_HOST):
            return self._map_rows(tuple(elements))

    def pack(self, tensors: list[Any]) -> Any:
        return tf.nest.pack_sequence_as(self._pipeline.spec, tensors)

    def _make(self) -> Any:
        """Return the dataset of batches: mapped rows, elements, and which rows are mapped."""
        pipeline, of_batches = self._pipeline, self._pipeline.of_batches
        rows = pipeline.elements.enumerate().map(
            self._map_row, num_parallel_calls=pipeline.of_rows.num_parallel
        )
        batches = rows.batch(pipeline.batch_size, drop_remainder=pipeline.drops_rest)
        if of_batches.compute is not None:
            batches = batches.map(self._map_batch, num_parallel_calls=of_batches.num_parallel)
        return pipeline.finish(batches)

    @tf.autograph.experimental.do_not_convert
    def _map_row(self, index: Any, element: Any) -> Any:
        flat, compute = tf.nest.flatten(element), self._pipeline.of_rows.compute
        is_mapped = tf.gather(self._selected.read_value(), index % self._pipeline.batch_size)
        if compute is None:
            # The maps of batches take their rows from the elements.
            return (), tuple(flat), is_mapped
        leaves: list[tf.TensorSpec] = tf.nest.flatten(self._pipeline.row_spec)

        def zeros() -> list[Any]:
            return [tf.zeros(leaf.shape, leaf.dtype) for leaf in leaves]

        mapped = tf.cond(is_mapped, lambda: compute(flat), zeros)
        return tuple(mapped), tuple(flat), is_mapped

    @tf.autograph.experimental.do_not_convert
    def _map_batch(self, mapped: Any, elements: Any, is_mapped: Any) -> Any:
        compute, given = self._pipeline.of_batches.compute, [*(mapped or elements)]
        assert compute is not None
        rows = tf.where(is_mapped)
        leaves: list[tf.TensorSpec] = tf.nest.flatten(self._pipeline.spec)

        def no_rows() -> list[Any]:
            return [tf.zeros([tf.size(is_mapped), *leaf.shape[1:]], leaf.dtype) for leaf in leaves]

        def some_rows() -> list[Any]:
            found = compute([tf.gather(tensor, rows[:, 0]) for tensor in given])
            pairs = zip(no_rows(), found, strict=True)
            return [tf.tensor_scatter_nd_update(zeros, rows, some) for zeros, some in pairs]

        def some_rows_or_none() -> list[Any]:
            return tf.cond(tf.reduce_any(is_mapped), some_rows, no_rows)

        results = tf.cond(tf.reduce_all(is_mapped), lambda: compute(given), some_rows_or_none)
        return tuple(results), elements, is_mapped

    @functools.cached_property
    def _map_rows(self) -> Any:
        compute, compute_batch = self._pipeline.of_rows.compute, self._pipeline.of_batches.compute
        leaves: list[Any] = tf.nest.flatten(self._pipeline.elements.element_spec)
        specs = tuple(tf.TensorSpec([None, *leaf.shape], leaf.dtype) for leaf in leaves)

        @tf.function(autograph=False, input_signature=[specs])
        def map_rows(elements: tuple[Any, ...]) -> tuple[Any, ...]:
            found = elements if compute is None else _map_each(compute, elements)
            return found if compute_batch is None else tuple(compute_batch([*found]))

        return map_rows


def _map_each(compute: Compute, elements: tuple[Any, ...]) -> tuple[Any, ...]:
    rows = tf.data.Dataset.from_tensor_slices(elements)
    mapped = rows.map(
        tf.autograph.experimental.do_not_convert(lambda *row: tuple(compute([*row]))),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return mapped.batch(tf.shape(elements[0], tf.int64)[0]).get_single_element()


class OwnRowsIterator:
    """Iterator over batches that have all rows."""

    def __init__(self, pipeline: OwnRowsPipeline, iterator: Iterator[Any]) -> None:
        self._pipeline, self._iterator = pipeline, iterator

    def __iter__(self) -> OwnRowsIterator:
        return self

    def __next__(self) -> Any:
        return next(self.of_own_rows()).whole()

    def of_own_rows(self) -> Iterator[BatchOfOwnRows]:
        for mapped, elements, is_mapped in self._iterator:
            yield BatchOfOwnRows(self._pipeline, [*mapped], [*elements], is_mapped.numpy())


class BatchOfOwnRows:
    """Batch of which this worker has mapped some rows.

    ``tensors`` has the mapped rows and zeros for the others, ``elements`` the rows before they are
    mapped, both flat. ``needed`` is None until a step has said which rows it needs.
    """

    def __init__(
        self, pipeline: OwnRowsPipeline, tensors: list[Any], elements: list[Any], is_mapped: Rows
    ) -> None:
        self._pipeline, self._tensors = pipeline, tensors
        self._elements, self._is_mapped = elements, is_mapped
        self.needed: Rows | None = None

    @property
    def num_rows(self) -> int:
        return len(self._is_mapped)

    @property
    def elements(self) -> list[np.ndarray]:
        """Rows before they are mapped: the same on all workers."""
        return [element.numpy() for element in self._elements]

    def as_it_is(self) -> Any:
        """Return the nested tensors, zeros for rows that are not mapped."""
        return self._pipeline.pack(self._tensors)

    def expected(self) -> Any:
        """Return the nested tensors with the rows that a step needs, as far as is known."""
        needed = self._pipeline.expected(self.num_rows)
        return self.with_rows(needed if self.needed is None else needed | self.needed)

    def whole(self) -> Any:
        return self.with_rows(np.ones(self.num_rows, np.bool_))

    def with_rows(self, needed: Rows) -> Any:
        """Return the nested tensors; some rows are mapped for sure."""
        [missing] = np.nonzero(needed & ~self._is_mapped)
        if len(missing) == self.num_rows:
            self._tensors = [*self._pipeline.map_rows(self._elements)]
        elif len(missing):
            with tf.device(_HOST):
                mapped = self._pipeline.map_rows(
                    [tf.gather(element, missing) for element in self._elements]
                )
                self._tensors = [
                    tf.tensor_scatter_nd_update(tensor, missing[:, None], rows)
                    for tensor, rows in zip(self._tensors, mapped, strict=True)
                ]
        self._is_mapped = self._is_mapped | needed
        return self.as_it_is()

    def check(self, needed: Rows) -> None:
        """Note which rows a step needs that begins; `RowsMissing` if some are not mapped."""
        self.needed = needed
        if (needed & ~self._is_mapped).any():
            raise RowsMissing

    def end(self) -> None:
        if self.needed is not None:
            self._pipeline.note_needed(self.needed)
        elif not self._is_mapped.all():
            raise RowsMissing("a function has used a batch without saying which rows it needs")
