"""From the parts of all replicas to the loss of the whole batch, and back to coefficients.

For each compiled loss k with loss weight w_k,

      value_k = sum_i N_ik / sum_i D_ik             what Keras would compute on one device
      d loss / d N_ik = w_k / sum_i D_ik            what each replica's backward begins with
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from evener.engine.staged.loss import Denominator


def denominators(
    kinds: Sequence[Denominator],
    computed: Sequence[Sequence[tf.Tensor]],
    num_samples: tf.Tensor,
) -> list[tf.Tensor]:
    """Return what each compiled loss is divided by, over the whole batch.

    Args:
        kinds: One per compiled loss.
        computed: For each replica, its computed denominators in the order of the losses.
        num_samples: Samples of the batch, int32 scalar.
    """
    column = 0
    totals = []
    for kind in kinds:
        if kind == "samples":
            totals.append(tf.cast(num_samples, tf.float32))
        elif kind == "one":
            totals.append(tf.ones([]))
        else:
            totals.append(tf.add_n([replica[column] for replica in computed]))
            column += 1
    return totals


def values(
    numerators: Sequence[Sequence[tf.Tensor]], divisors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return the value of each compiled loss over the whole batch.

    Args:
        numerators: For each replica, one per compiled loss.
        divisors: One per compiled loss.
    """
    return [
        tf.math.divide_no_nan(tf.add_n(list(column)), tf.cast(divisor, column[0].dtype))
        for column, divisor in zip(zip(*numerators, strict=True), divisors, strict=True)
    ]


def coefficients(
    loss_weights: Sequence[float | None], divisors: Sequence[tf.Tensor], scale: tf.Tensor
) -> list[tf.Tensor]:
    """Return d(scaled loss) / d(numerator) of each compiled loss.

    Args:
        loss_weights: As given to ``compile``; None counts as 1.
        divisors: One per compiled loss.
        scale: The optimizer's loss scale, float32 scalar.
    """
    return [
        tf.math.divide_no_nan(
            scale * (1.0 if weight is None else weight), tf.cast(divisor, scale.dtype)
        )
        for weight, divisor in zip(loss_weights, divisors, strict=True)
    ]


def weighted_sum(
    loss_values: Sequence[tf.Tensor], loss_weights: Sequence[float | None]
) -> list[tf.Tensor]:
    """Return each compiled loss times its weight."""
    return [
        value if weight is None else value * tf.cast(weight, value.dtype)
        for value, weight in zip(loss_values, loss_weights, strict=True)
    ]
