"""Masked moments over all replicas, for `BatchNormalization(synchronized=True)`.

Keras synchronises the moments of a batch without a mask only; with a mask, every replica
would use those of its own share. In lockstep the same formula is computed with sums over all
replicas: first of the inputs and of the mask, then of the squared distances to the mean.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import ops


@contextlib.contextmanager
def masked_moments_in_lockstep() -> Iterator[None]:
    """Let synchronised layers add up masked moments over the replicas inside."""
    layer = keras.layers.BatchNormalization
    own = layer._moments

    def moments(self: Any, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[Any, Any]:
        if mask is None or not self.synchronized:
            return own(self, inputs, mask)
        return _moments(inputs, mask, self._reduction_axes)

    layer._moments = moments
    try:
        yield
    finally:
        layer._moments = own


def _moments(inputs: tf.Tensor, mask: tf.Tensor, axes: list[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance as Keras does, of the entries that the mask lets through."""
    context = tf.distribute.get_replica_context()
    counts = ops.broadcast_to(ops.expand_dims(mask, -1), ops.shape(inputs))
    counts = ops.cast(counts, "bool")
    total = ops.sum(ops.where(counts, inputs, 0), axes, keepdims=True)
    weight = ops.sum(ops.cast(counts, inputs.dtype), axes, keepdims=True)
    total, weight = context.all_reduce("SUM", [total, weight])
    divisor = weight + keras.config.epsilon()
    mean = total / divisor
    distances = ops.square(ops.where(counts, inputs - mean, 0))
    spread = context.all_reduce("SUM", ops.sum(distances, axes, keepdims=True))
    return ops.squeeze(mean), ops.squeeze(spread / divisor)
