"""What ``add_loss`` means for a share: a mean over the batch, or a sum over it?

Keras hands over one number, and both are common: a KL term averaged over the samples, an
activity penalty summed over them. Which of them it is, is measured once, before the first
step, on two halves of a few samples and on both halves together:

      f(both) = (f(one) + f(other)) / 2      a mean
      f(both) =  f(one) + f(other)           a sum
      neither                                a term of the batch as a whole; a warning
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import tensorflow as tf

from evener.errors import warn

AddedKind = Literal["mean", "sum"]

HALF = 8
"""The most samples in one half of the probe."""

_ROUNDING = 1e-3


def kinds_from_probe(
    one: Sequence[float], other: Sequence[float], both: Sequence[float], *, num_replicas: int
) -> list[AddedKind | None]:
    """Tell the kind of every added loss from its values on two halves and on both together.

    Args:
        one: Values on some samples.
        other: Values on as many other samples.
        both: Values on all of them.
        num_replicas: With one replica nothing is split, and every kind is exact.

    Returns:
        The kinds; None where the values cannot tell, as when all are 0.
    """
    kinds: list[AddedKind | None] = []
    for index, (a, b, ab) in enumerate(zip(one, other, both, strict=True)):
        scale = max(abs(a), abs(b), abs(ab)) or 1.0
        off_mean, off_sum = abs(ab - (a + b) / 2) / scale, abs(ab - (a + b)) / scale
        if max(off_mean, off_sum) <= _ROUNDING:
            kinds.append(None)
            continue
        if num_replicas > 1 and not min(off_mean, off_sum) <= _ROUNDING:
            _warn_unclear(index, (a, b, ab))
        kinds.append("sum" if off_sum < off_mean else "mean")
    return kinds


def or_mean(kinds: Sequence[AddedKind | None], *, num_replicas: int) -> list[AddedKind]:
    """Take what could not be told for a mean, and say so."""
    unknown = [index + 1 for index, kind in enumerate(kinds) if kind is None]
    if unknown and num_replicas > 1:
        warn(
            "ENG-021",
            f"It cannot be told what the add_loss terms {unknown} mean.",
            why="They are 0 on the first samples, whatever the weights; they are taken for means "
            "over samples. A sum would be too small by the number of replicas.",
            fix="Write such a term as a mean over samples, or compute it in the loss function "
            "given to compile, which sees the whole batch.",
        )
    return [kind or "mean" for kind in kinds]


def _warn_unclear(index: int, values: tuple[float, float, float]) -> None:
    a, b, ab = values
    warn(
        "ENG-020",
        f"The add_loss term number {index + 1} is neither a mean nor a sum over samples.",
        why=f"It is {a:.4g} on some samples, {b:.4g} on others and {ab:.4g} on all of them. "
        "Each replica computes it on its own share, so it is not what one device would give.",
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
        tf.add_n([_part(kinds[j], w) * t for t, w in zip(column, weights, strict=True)])
        for j, column in enumerate(zip(*terms, strict=True))
    ]


def seeds(kinds: Sequence[AddedKind], weight: tf.Tensor, scale: tf.Tensor) -> list[tf.Tensor]:
    """Return d(scaled loss) / d(term) of each of one replica's added losses."""
    return parts(kinds, weight, [scale] * len(kinds))


def parts(
    kinds: Sequence[AddedKind], weight: tf.Tensor, values: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return one replica's part of values that belong to the added losses of the batch."""
    return [
        value * tf.cast(_part(kind, weight), value.dtype)
        for kind, value in zip(kinds, values, strict=True)
    ]


def _part(kind: AddedKind, weight: tf.Tensor) -> tf.Tensor:
    """Return what a replica's term counts: its part of the samples, or all if it has any."""
    return weight if kind == "mean" else tf.cast(weight > 0, weight.dtype)
