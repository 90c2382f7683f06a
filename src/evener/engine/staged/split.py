"""Splitting the global batch by shares, inside the graph, so that shares can change.

      global batch of 512           shares 320 : 192
      |0 ....................... 320|320 .......... 512|
            replica 0                    replica 1

The cuts are those of `evener.plan.split_batch`; here they are tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener.errors import DataError


def batch_leaves(data: Any) -> list[Any]:
    """Return the tensors of a nested batch, without what is missing."""
    return [leaf for leaf in keras.tree.flatten(data) if leaf is not None]


def batch_size(data: Any) -> tf.Tensor:
    """Return the number of samples in a nested batch, as an int32 scalar.

    Raises:
        DataError: If the batch holds nothing, or no samples, and its shape says so.
    """
    leaves = batch_leaves(data)
    if not leaves:
        raise no_tensor()
    for leaf in leaves:
        _check_leaf(leaf)
    if leaves[0].shape[0] == 0:
        raise no_samples()
    num_samples = num_rows(leaves[0])
    # Everything in the step needs the batch size, so nothing happens before this check.
    check = tf.debugging.assert_positive(num_samples, message=str(no_samples()))
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(num_samples)


def num_rows(leaf: Any) -> tf.Tensor:
    """Return the size of a tensor's first axis, int32 scalar."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    if leaf.shape.rank is None:
        # Its rank is only known when it runs; a number would be one row.
        return tf.concat([tf.shape(leaf), [1]], 0)[0]
    return tf.shape(leaf)[0]


def no_tensor() -> DataError:
    """Return the error for a batch that holds nothing."""
    return DataError(
        "DATA-001",
        "The batch holds no tensor.",
        why="A step needs at least the inputs of the model.",
        fix="Let the data yield x, (x, y) or (x, y, sample_weight).",
    )


def no_samples() -> DataError:
    """Return the error for a batch of 0 samples."""
    return DataError(
        "DATA-002",
        "The batch holds 0 samples.",
        why="A mean over no samples has no value, so no step can be taken.",
        fix="Drop empty batches from the data, for example with dataset.filter.",
    )


def not_a_tensor(leaf: Any) -> DataError:
    """Return the error for data that cannot be split."""
    kind = getattr(leaf, "dtype", None)
    what = type(leaf).__name__ if kind is None else f"{type(leaf).__name__} of {kind}"
    return DataError(
        "DATA-003",
        f"The batch holds {what}, which is not a tensor.",
        why="Batches are split over the devices along their first axis.",
        fix="Let the data yield tensors or NumPy arrays.",
    )


def unpack(data: Any) -> tuple[Any, Any, Any]:
    """Return ``(x, y, sample_weight)`` of a batch, as tensors, with None for what is missing."""

    def one(leaf: Any) -> Any:
        return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf

    return keras.tree.map_structure(one, keras.utils.unpack_x_y_sample_weight(data))


def _check_leaf(leaf: Any) -> None:
    if not isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor):
        raise not_a_tensor(leaf)
    if leaf.shape.rank == 0:
        raise DataError(
            "DATA-004",
            "The batch holds a tensor without a batch axis.",
            why="A tensor of rank 0 cannot be split over the devices.",
            fix="Give every input, target and weight one entry per sample.",
        )


def cut_points(num_samples: tf.Tensor, shares: tf.Tensor) -> tf.Tensor:
    """Return where to cut a batch: an int32 vector of ``num_replicas + 1`` positions.

    Args:
        num_samples: Samples in the batch, int32 scalar.
        shares: Relative shares of the replicas, float64 vector with a positive sum.
    """
    cumulative = tf.concat([tf.zeros([1], tf.float64), tf.cumsum(shares)], 0)
    exact = tf.cast(num_samples, tf.float64) * cumulative / cumulative[-1]
    return tf.cast(tf.floor(exact + 0.5), tf.int32)


def cut_again(cuts: tf.Tensor, num_micro_batches: Sequence[int]) -> tf.Tensor:
    """Return where to cut so that every share falls into its micro-batches.

    Args:
        cuts: Where the batch is cut into shares, int32 vector.
        num_micro_batches: Into how many pieces each share falls.

    Returns:
        An int32 vector of ``sum(num_micro_batches) + 1`` positions.
    """
    positions = [cuts[:1]]
    for share, count in enumerate(num_micro_batches):
        even = tf.ones([count], tf.float64)
        positions.append(cuts[share] + cut_points(cuts[share + 1] - cuts[share], even)[1:])
    return tf.concat(positions, 0)


def take(data: Any, begin: tf.Tensor | int, end: tf.Tensor | int) -> Any:
    """Return the samples from ``begin`` to ``end`` of every tensor of a nested batch."""

    def one(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, tf.SparseTensor):
            return _take_sparse(leaf, begin, end)
        return leaf[begin:end]

    return keras.tree.map_structure(one, data)


def _take_sparse(leaf: tf.SparseTensor, begin: Any, end: Any) -> tf.SparseTensor:
    rest = leaf.dense_shape[1:]
    start = tf.concat([tf.cast(begin, tf.int64)[None], tf.zeros_like(rest)], 0)
    size = tf.concat([tf.cast(end - begin, tf.int64)[None], rest], 0)
    return tf.sparse.slice(leaf, start, size)


def join(parts: list[Any]) -> Any:
    """Return the parts of all replicas joined along the batch axis, in their order."""
    if len(parts) == 1:
        return parts[0]

    def one(*leaves: Any) -> Any:
        if leaves[0] is None:
            return None
        if isinstance(leaves[0], tf.SparseTensor):
            return tf.sparse.concat(0, list(leaves))
        return tf.concat(list(leaves), 0)

    return keras.tree.map_structure(one, *parts)


def spec_of_any_size(leaf: Any) -> Any:
    """Return the spec of a tensor, or of a spec, with an unknown batch size."""
    if leaf is None:
        return None
    if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        spec = tf.type_spec_from_value(leaf)
    elif isinstance(leaf, tf.TypeSpec):
        spec = leaf
    else:
        leaf = tf.convert_to_tensor(leaf)
        return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)
    return any_size(spec)


def any_size(spec: Any) -> Any:
    """Return a spec with an unknown batch size."""
    if not spec.shape.rank:
        return spec
    shape = tf.TensorShape([None, *spec.shape[1:]])
    if isinstance(spec, tf.RaggedTensorSpec):
        ragged: Any = spec
        return tf.RaggedTensorSpec(shape, ragged.dtype, ragged.ragged_rank, ragged.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def forget_batch_size(data: Any) -> Any:
    """Return a nested batch whose tensors do not know their static batch size.

    One trace of a replica then serves batches of every size.
    """

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or tf.executing_eagerly():
            return leaf
        return tf.raw_ops.PlaceholderWithDefault(input=leaf, shape=[None, *leaf.shape[1:]])

    return keras.tree.map_structure(one, data)
