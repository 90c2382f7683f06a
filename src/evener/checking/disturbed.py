"""Numbers with other last places, as any other order of summation would give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener.checking.precision import ROUNDINGS

_LAST_PLACES = 64.0
"""Largest change, in roundings of the dtype."""
_OF_EIGHT_BITS = 2.0**-3
_HALVES = (tf.bfloat16, tf.float16)


def disturbed(
    tensors: Sequence[Any],
    variables: Sequence[tf.Variable] | None,
    seed: tf.Tensor,
    epsilon: float,
) -> list[Any]:
    """Return tensors whose floating-point numbers have other last places.

    Args:
        tensors: Tensors.
        variables: Variables that they are the values of; state that is not trained is changed by
            its own rounding. None for arguments of a step.
        seed: Number of the change.
        epsilon: Rounding of the least precise dtype that the step computes in.
    """
    changed = []
    for number, tensor in enumerate(tensors):
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            changed.append(tensor)
            continue
        own = ROUNDINGS.get(tensor.dtype, _OF_EIGHT_BITS)
        computed = variables is None or variables[number].trainable
        by = max(own, epsilon) if computed else own
        by *= 1.0 if by > 2.0**-12 else _LAST_PLACES
        wide = tensor.dtype.real_dtype
        draw = tf.float32 if wide in _HALVES or wide.size < 4 else wide
        factor = 1 + by * tf.random.stateless_uniform(
            tf.shape(tensor), tf.stack([seed, number]), -1.0, 1.0, draw
        )
        if tensor.dtype.is_complex:
            changed.append(tensor * tf.cast(factor, tensor.dtype))
        else:
            changed.append(tf.cast(tf.cast(tensor, draw) * factor, tensor.dtype))
    return changed
