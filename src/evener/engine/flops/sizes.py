"""Bytes of the tensors of a step, for a number of samples."""

from __future__ import annotations

import tensorflow as tf

from evener.engine.flops.loops import listed
from evener.engine.partition.tensor_lists import element_dtype
from evener.graph.counts import num_elements
from evener.graph.dims import Size
from evener.graph.nodes import Tensor
from evener.ops.states import Sharded, State, part_sizes

_FEW, _MANY = 32, 64
"""Samples between which a slope is taken: sizes that grow faster than the samples are rare."""


def shape_of(tensor: Tensor, state: State | None) -> tuple[Size, ...] | None:
    """Return the shape of a tensor in a part, or None if its rank is not known."""
    if tensor.shape is None or not isinstance(state, Sharded):
        return tensor.shape
    return part_sizes(tensor.shape, state)


def num_bytes(tensor: Tensor, num_samples: int) -> int:
    """Return the bytes of a tensor, or of all elements of a list of tensors."""
    if tensor.dtype == tf.resource:
        return 0
    found = listed(tensor) if tensor.dtype == tf.variant else None
    if found is not None:
        element, count = found
        return count * num_bytes(element, num_samples)
    dtype = element_dtype(tensor) if tensor.dtype == tf.variant else tensor.dtype
    return num_elements(tensor, num_samples) * dtype.size


def bytes_per_sample(tensor: Tensor) -> float:
    """Return by how many bytes a tensor grows with every sample."""
    return (num_bytes(tensor, _MANY) - num_bytes(tensor, _FEW)) / (_MANY - _FEW)
