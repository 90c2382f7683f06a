"""Bytes of the tensors of a step, for a number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from evener.engine.flops.loops import listed
from evener.engine.partition.tensors import element_dtype
from evener.graph.dims import Size, evaluate, symbols_of
from evener.graph.nodes import Tensor
from evener.ops.states import Sharded, State, part_sizes

_FEW, _MANY = 32, 64
"""Samples between which a slope is taken: sizes that grow faster than the samples are rare."""


def numbers(sizes: Sequence[Size], num_samples: int) -> tuple[int, ...]:
    """Return what sizes are where all samples are in one part.

    A size that only the data decides counts as 1.
    """
    values = dict.fromkeys((name for size in sizes for name in symbols_of(size)), 1)
    values |= {"B": num_samples, "b": num_samples, "o": 0}
    return tuple(int(evaluate(size, values)) for size in sizes)


def shape_of(tensor: Tensor, state: State) -> tuple[Size, ...] | None:
    """Return the shape of what a part holds of a tensor, or None if its rank is not known."""
    if tensor.shape is None or not isinstance(state, Sharded):
        return tensor.shape
    return part_sizes(tensor.shape, state)


def num_elements(tensor: Tensor, num_samples: int) -> int:
    """Return the elements of a tensor; 1 if its rank is not known."""
    return math.prod(numbers(tensor.shape or (), num_samples))


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
