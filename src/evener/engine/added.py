"""What ``add_loss`` means for a share: a mean over the batch, or a sum over it?

Keras hands over one number, and both are common: a KL term averaged over the samples, an
activity penalty summed over them. Whether the number is a mean or a sum is measured once,
before the first step, on a few samples and on the same samples twice: a mean stays, a sum
doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import tensorflow as tf

from evener.errors import warn

AddedKind = Literal["mean", "sum"]

PROBE_SAMPLES = 8
"""Samples of the first batch that are looked at."""

_CLEAR = 0.1


def kinds_from_probe(
    once: Sequence[float], twice: Sequence[float], *, num_replicas: int
) -> list[AddedKind]:
    """Tell the kind of every added loss from its values on samples and on them twice.

    Args:
        once: Values on the samples.
        twice: Values on the same samples, each occurring twice.
        num_replicas: With one replica nothing is split, and every kind is exact.
    """
    kinds: list[AddedKind] = []
    for index, (a, b) in enumerate(zip(once, twice, strict=True)):
        ratio = b / a if a else 1.0
        if num_replicas > 1 and min(abs(ratio - 1.0), abs(ratio - 2.0)) > _CLEAR:
            _warn_unclear(index, ratio)
        kinds.append("sum" if abs(ratio - 2.0) < abs(ratio - 1.0) else "mean")
    return kinds


def _warn_unclear(index: int, ratio: float) -> None:
    warn(
        "ENG-020",
        f"The add_loss term number {index + 1} is neither a mean nor a sum over samples.",
        why=f"On the same samples twice it is {ratio:.3g} times as large; a mean stays at 1, "
        "a sum comes to 2. Random layers or a term over pairs of samples can cause it. "
        "Its part of every share is weighted as the nearer of the two, which may not be exact.",
        fix="Compute this term in the loss function given to compile, which sees the whole "
        "batch, or write it as a mean over samples.",
    )


def batch_value(
    terms: Sequence[Sequence[tf.Tensor]], kinds: Sequence[AddedKind], weights: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return the value of every added loss over the whole batch.

    Args:
        terms: For each replica, one per added loss.
        kinds: One per added loss.
        weights: For each replica, its samples over those of the batch, float32 scalar.
    """
    return [
        tf.add_n([part_weight(kinds[j], w) * t for t, w in zip(column, weights, strict=True)])
        for j, column in enumerate(zip(*terms, strict=True))
    ]


def part_weight(kind: AddedKind, weight: tf.Tensor) -> tf.Tensor:
    """Return what a replica's term counts: its part of the samples, or all if it has any."""
    return weight if kind == "mean" else tf.cast(weight > 0, weight.dtype)
