"""Distributed datasets: every batch comes as one part per replica, cut by the shares.

The batches are cut in the dataset's own pipeline, ahead of the step, by the shares of that
moment. A loop over them looks like one over any `tf.distribute` dataset, eagerly and in a
graph:

      dataset ──► cut by shares ──► prefetch ──► next(): a value per replica
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged import split
from evener.errors import EngineError
from evener.plan import split_batch

if TYPE_CHECKING:
    from evener.engine.staged.strategy import StagedStrategy

_HOST = "/device:CPU:0"
_AHEAD = 2


class DistributedDataset(_tf_private.DistributedDatasetInterface):
    """A dataset whose elements are values per replica.

    Args:
        dataset: Elements are tuples with one entry per replica.
        any_size: Whether the parts change their sizes, so that no function should be traced
            for one size.
    """

    def __init__(self, dataset: tf.data.Dataset, *, any_size: bool) -> None:
        self._dataset = dataset
        self._any_size = any_size

    def __iter__(self) -> DistributedIterator:
        with tf.device(_HOST):
            iterator = iter(self._dataset)
        return DistributedIterator(iterator, any_size=self._any_size)

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def cardinality(self) -> int:
        """The number of batches, or a negative number as of `tf.data.Dataset.cardinality`."""
        return int(self._dataset.cardinality())

    @property
    def element_spec(self) -> Any:
        """The spec of an element: values per replica."""
        return _tf_private.spec_per_replica(self._dataset.element_spec)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Call ``reduce_func(state, element)`` for every element; return the last state.

        This is what a loop over the dataset becomes in a `tf.function`.
        """
        with tf.device(_HOST):
            iterator = iter(self._dataset)

        def more(element: Any, state: Any) -> Any:
            del state
            return element.has_value()

        def body(element: Any, state: Any) -> Any:
            state = reduce_func(state, _tf_private.regroup_or_one(element.get_value()))
            return iterator.get_next_as_optional(), state

        begin = [iterator.get_next_as_optional(), initial_state]
        return tf.while_loop(more, body, begin, parallel_iterations=1)[1]


class DistributedIterator(_tf_private.DistributedIteratorInterface, _tf_private.CompositeTensor):
    """Iterates over a `DistributedDataset`; may be handed to a `tf.function`.

    Args:
        iterator: Over tuples with one entry per replica.
        any_size: As of the dataset.
    """

    def __init__(self, iterator: Any, *, any_size: bool) -> None:
        self._iterator = iterator
        self._any_size = any_size

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._per_replica(next(self._iterator))

    def get_next(self) -> Any:
        """Return the next element; at the end, raise `tf.errors.OutOfRangeError`."""
        return self._per_replica(self._iterator.get_next())

    def get_next_as_optional(self) -> Any:
        """Return the next element, or nothing, as a `tf.experimental.Optional`."""
        found = self._iterator.get_next_as_optional()
        optional: Any = tf.experimental.Optional
        return tf.cond(
            found.has_value(),
            lambda: optional.from_value(self._per_replica(found.get_value())),
            lambda: optional.empty(self.element_spec),
        )

    def _per_replica(self, element: Any) -> Any:
        is_loose = self._any_size and tf.executing_eagerly()
        return _tf_private.regroup_or_one(element, split.any_size if is_loose else None)

    @property
    def element_spec(self) -> Any:
        """The spec of an element: values per replica."""
        return _tf_private.spec_per_replica(self._iterator.element_spec)

    @property
    def _type_spec(self) -> Any:
        return _IteratorSpec(self._iterator._type_spec, self._any_size)


class _IteratorSpec(tf.TypeSpec):
    """The spec of a `DistributedIterator`: that of the iterator inside it."""

    def __init__(self, inside: tf.TypeSpec, any_size: bool) -> None:
        self._inside = inside
        self._any_size = any_size

    @property
    def value_type(self) -> type:
        return DistributedIterator

    def _serialize(self) -> tuple[Any, ...]:
        return (self._inside, self._any_size)

    @property
    def _component_specs(self) -> Any:
        return self._inside

    def _to_components(self, value: DistributedIterator) -> Any:
        return value._iterator

    def _from_components(self, components: Any) -> DistributedIterator:
        return DistributedIterator(components, any_size=self._any_size)


def distribute(dataset: Any, strategy: StagedStrategy) -> DistributedDataset:
    """Return a dataset of global batches, cut by the strategy's shares.

    Raises:
        EngineError: If it is no `tf.data.Dataset`.
        DataError: If its elements are no batches.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise EngineError(
            "ENG-005",
            f"experimental_distribute_dataset was given a {type(dataset).__name__}.",
            why="It splits the batches of a tf.data.Dataset.",
            fix="Make one, for example with "
            "tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size).",
        )
    spec: Any = dataset.element_spec
    size = static_batch_size(spec)
    keeps_sizes = size is not None and not strategy.sharing.is_measured

    @tf.autograph.experimental.do_not_convert
    def cut(*element: Any) -> tuple[Any, ...]:
        # `map` hands over a tuple as several arguments, and everything else as one.
        batch: Any = element
        if not isinstance(spec, tuple):
            (batch,) = element
        return cut_by_shares(batch, strategy, size if keeps_sizes else None)

    with tf.device(_HOST):
        return DistributedDataset(dataset.map(cut).prefetch(_AHEAD), any_size=not keeps_sizes)


def from_function(dataset_fn: Callable[[Any], Any], strategy: StagedStrategy) -> DistributedDataset:
    """Return a dataset of which every replica's part was batched by a person.

    As many batches as there are replicas make one global batch, which is cut by the shares.
    Batches that cannot be joined, because they are ragged, sparse or padded to unlike
    widths, go to the replicas as they are.

    Args:
        dataset_fn: Takes a `tf.distribute.InputContext`, returns a dataset of the batches of
            one replica.
        strategy: The strategy.
    """
    count = strategy.num_replicas_in_sync
    with tf.device(_HOST):
        dataset = dataset_fn(
            tf.distribute.InputContext(
                num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=count
            )
        )
        if count == 1 or not isinstance(dataset, tf.data.Dataset):
            return distribute(dataset, strategy)
        if all(_can_be_joined(leaf) for leaf in tf.nest.flatten(dataset.element_spec)):
            return distribute(_in_windows(dataset, count, _joined), strategy)
        parts = _in_windows(dataset, count, functools.partial(_one_each, count=count))
        return DistributedDataset(parts.prefetch(_AHEAD), any_size=True)


def from_functions(
    dataset_fn: Callable[[Any], Any], strategy: StagedStrategy
) -> DistributedDataset:
    """Return a dataset of which every replica's part has a pipeline of its own.

    Args:
        dataset_fn: Called once for each replica, with a `tf.distribute.InputContext`.
        strategy: The strategy.
    """
    count = strategy.num_replicas_in_sync
    contexts = [
        tf.distribute.InputContext(
            num_input_pipelines=count, input_pipeline_id=replica, num_replicas_in_sync=count
        )
        for replica in range(count)
    ]
    with tf.device(_HOST):
        parts = tf.data.Dataset.zip(tuple(dataset_fn(context) for context in contexts))
        return DistributedDataset(parts.prefetch(_AHEAD), any_size=True)


def _can_be_joined(leaf: Any) -> bool:
    return isinstance(leaf, tf.TensorSpec) and leaf.shape[1:].is_fully_defined()


def _in_windows(
    dataset: tf.data.Dataset, count: int, merge: Callable[[tf.data.Dataset], Any]
) -> tf.data.Dataset:
    """Return a dataset of what ``merge`` makes of ``count`` neighbouring batches each."""

    @tf.autograph.experimental.do_not_convert
    def of_window(*windows: Any) -> Any:
        nested: Any = windows
        if len(windows) == 1:
            (nested,) = windows
        return merge(tf.data.Dataset.zip(nested))

    return dataset.window(count).map(of_window)


def _none_of(batches: tf.data.Dataset) -> Any:
    """Return a batch like these without samples."""
    return split.take(batches.take(1).get_single_element(), 0, 0)


def _joined(batches: tf.data.Dataset) -> Any:
    def join(before: Any, batch: Any) -> Any:
        return tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), before, batch)

    return batches.reduce(_none_of(batches), join)


def _one_each(batches: tf.data.Dataset, *, count: int) -> tuple[Any, ...]:
    none = tf.data.Dataset.from_tensors(_none_of(batches))
    return tuple(
        batches.skip(k).concatenate(none).take(1).get_single_element() for k in range(count)
    )


def static_batch_size(spec: Any) -> int | None:
    """Return the batch size that all elements have, or None."""
    leaves: list[Any] = tf.nest.flatten(spec)
    sizes = {leaf.shape[0] if leaf.shape.rank else None for leaf in leaves}
    return sizes.pop() if len(sizes) == 1 else None


def cut_by_shares(batch: Any, strategy: StagedStrategy, size: int | None = None) -> tuple[Any, ...]:
    """Return the parts of a global batch, one per replica, by the shares of this moment.

    Args:
        batch: Nested tensors.
        strategy: The strategy.
        size: The batch size, if it is always this and so are the shares.
    """
    if strategy.num_replicas_in_sync == 1:
        return (batch,)
    counts = [replica.num_micro_batches for replica in strategy.plan.replicas]
    if size is not None:
        parts = split_batch(size, strategy.shares)
        again = [split_batch(n, [1.0] * k) for n, k in zip(parts, counts, strict=True)]
        ends = np.cumsum([0, *itertools.chain(*again)]).tolist()
    else:
        with tf.device(_HOST):
            cuts = split.cut_points(split.batch_size(batch), strategy.sharing.variable)
            if strategy.plan.is_cut:
                cuts = split.cut_again(cuts, counts)
            ends = tf.unstack(cuts, strategy.num_replicas_in_sync + 1)
    return tuple(split.take(batch, a, b) for a, b in itertools.pairwise(ends))
