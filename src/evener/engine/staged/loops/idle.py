"""Replicas without samples: a last batch may be smaller than the devices are many.

Such a replica computes one sample of another that does not count, as under ``fit``: some
operations cannot compute nothing at all. So that it does not count,

- gradients of its losses begin with 0 (`updates.py`);
- what it gives to a reduction is 0, and what it gives to be gathered is empty;
- what it returns is 0, or empty along the axis of the batch;
- what it has kept in variables is dropped (`variables.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener.engine.staged import split


def with_stand_ins(values: Sequence[Any], live: Sequence[tf.Tensor]) -> list[Any]:
    """Return the parts of a batch, one sample in each that had none.

    Args:
        values: For each replica, its samples of one tensor.
        live: For each replica whether it has samples, bool scalars.
    """

    def of_first(rest: Sequence[tuple[Any, tf.Tensor]]) -> Any:
        (value, has), *others = rest
        one = split.take(value, 0, 1)
        # Not joined: parts may differ beside the axis of the batch.
        return one if not others else tf.cond(has, lambda: one, lambda: of_first(others))

    pairs = list(zip(values, live, strict=True))
    return [
        _same_static_shape(tf.cond(has, lambda v=value: v, lambda: of_first(pairs)), value)
        for value, has in pairs
    ]


def _same_static_shape(padded: Any, value: Any) -> Any:
    if isinstance(padded, tf.Tensor) and not tf.executing_eagerly():
        padded.set_shape([None, *value.shape[1:]] if value.shape.rank else value.shape)
    return padded


def counted(value: tf.Tensor, is_live: tf.Tensor) -> tf.Tensor:
    """Return what a replica gives to a sum: 0 if it has no samples."""
    if value.dtype == tf.string:
        return value
    if value.shape.rank == 0:
        return tf.where(is_live, value, tf.zeros_like(value))
    # Not a product: nothing is copied where the replica has samples, which is nearly always.
    masked = tf.cond(is_live, lambda: value, lambda: tf.zeros_like(value))
    if not tf.executing_eagerly():
        masked.set_shape(value.shape)
    return masked


def all_counted(gradients: Sequence[Any], is_live: tf.Tensor) -> list[Any]:
    """Return a replica's gradients, with 0 for all of them if it has no samples."""
    flat = tf.nest.flatten(list(gradients), expand_composites=True)
    places = [k for k, leaf in enumerate(flat) if leaf is not None and leaf.dtype.is_floating]
    given = [flat[k] for k in places]
    # One condition for all; each of its results is there as soon as its own gradient is.
    masked = tf.cond(is_live, lambda: given, lambda: [tf.zeros_like(one) for one in given])
    for place, before, one in zip(places, given, masked, strict=True):
        if not tf.executing_eagerly():
            one.set_shape(before.shape)
        flat[place] = one
    return tf.nest.pack_sequence_as(list(gradients), flat, expand_composites=True)


def rows(value: Any, is_live: tf.Tensor, axis: int = 0) -> Any:
    """Return what a replica gives to be joined along the batch: nothing if it has no samples."""
    if axis != 0 or not is_along_batch(value):
        return value
    end = split.num_rows(value) * tf.cast(is_live, tf.int32)
    return split.take(value, 0, end)


def is_along_batch(value: Any) -> bool:
    """Return whether a value may have a row for each sample: the number of its rows is open."""
    if not isinstance(value, tf.Tensor):
        return True
    if tf.executing_eagerly():
        return value.shape.rank > 0 and value.shape[0] == 1
    return bool(value.shape.rank) and value.shape[0] is None


def returned(value: Any, is_live: tf.Tensor) -> Any:
    """Return what a replica returns: 0, or no rows, if it has no samples."""
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        return rows(value, is_live)
    if not isinstance(value, tf.Tensor) or value.dtype in (tf.resource, tf.variant):
        return value
    if not is_along_batch(value):
        return counted(value, is_live)
    return rows(value, is_live)
