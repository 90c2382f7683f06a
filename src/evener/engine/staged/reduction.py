"""Gradients of all replicas, summed on each variable's owner, and the update beside it.

      replica 0   g0 ──┐
      replica 1   g1 ──┼──► owner of the variable: g0 + g1 + g2 ──► optimizer
      replica 2   g2 ──┘

Each variable is summed where it lives, as soon as its own gradients are there, so the
sums are spread over the devices as the owners are and overlap the rest of the backward
pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private

Gradient = tf.Tensor | tf.IndexedSlices | None


def sum_on_owner(
    gradients: Sequence[Gradient], device: str, *, row_by_row: bool = False
) -> Gradient:
    """Return the sum of one variable's gradients, computed on its owner.

    Slices of an embedding are joined, not made dense, so that clipping sees what it would
    see on one device.

    Args:
        gradients: One per replica; None where the loss does not depend on the variable.
        device: TensorFlow's name of the owner.
        row_by_row: Whether slices are of the same rows in the same order, so that they are
            added, not joined: an optimizer may square each slice by itself.
    """
    present = [g for g in gradients if g is not None]
    if not present:
        return None
    with tf.device(device):
        if all(isinstance(g, tf.IndexedSlices) for g in present):
            return (_add_slices if row_by_row else _join_slices)(present)
        dense = [tf.convert_to_tensor(g) for g in present]
        return tf.identity(dense[0]) if len(dense) == 1 else tf.add_n(dense)


def _add_slices(slices: list[Any]) -> tf.IndexedSlices:
    return tf.IndexedSlices(
        values=tf.add_n([s.values for s in slices]),
        indices=slices[0].indices,
        dense_shape=slices[0].dense_shape,
    )


def _join_slices(slices: list[Any]) -> tf.IndexedSlices:
    if len(slices) == 1:
        return slices[0]
    return tf.IndexedSlices(
        values=tf.concat([s.values for s in slices], 0),
        indices=tf.concat([s.indices for s in slices], 0),
        dense_shape=slices[0].dense_shape,
    )


def free_from_order(results: Any) -> None:
    """Let the call that gave these results run beside those of the other replicas.

    A replica writes nothing, but TensorFlow runs calls in the order of the program as soon
    as one of their operations is stateful, such as a check of shapes. Calls that read
    variables of their own keep their order: an update might come before the read.
    """
    if tf.executing_eagerly():
        return
    for tensor in tf.nest.flatten(results, expand_composites=True):
        if tensor is None or tensor.op.type != "StatefulPartitionedCall":
            continue
        if not any(given.dtype == tf.resource for given in tensor.op.inputs):
            _tf_private.without_program_order(tensor.op)
        return
