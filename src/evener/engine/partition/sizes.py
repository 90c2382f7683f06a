"""Samples of each part, computed in the graph.

::

    global batch of 512           shares 320 : 192
    |0 ....................... 320|320 .......... 512|
              part 0                    part 1

The cuts are those of `evener.plan.split_batch`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from evener.engine.partition.homes import HOST
from evener.engine.pipeline.layout import Layout


def part_sizes_in_graph(num_samples: tf.Tensor, shares: Sequence[float] | tf.Tensor) -> tf.Tensor:
    """Return the samples of each part, int32 vector.

    Args:
        num_samples: Samples in the batch, int32 scalar.
        shares: Relative parts; or a float64 vector of them, which may change from step to step.
    """
    with tf.device(HOST):
        if isinstance(shares, tf.Tensor):
            cumulative = tf.cumsum(shares)
        else:
            cumulative = tf.constant(list(itertools.accumulate(shares)), tf.float64)
        ideal = tf.cast(num_samples, tf.float64) * cumulative / cumulative[-1]
        ends = tf.cast(tf.floor(ideal + 0.5), tf.int32)
        return ends - tf.concat([[0], ends[:-1]], 0)


def micro_batch_sizes(sizes: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
    """Return the samples of each micro-batch, int32 scalars.

    Args:
        sizes: The samples of each replica, int32 vector.
        layout: Says into how many micro-batches they are cut.
    """
    micro_batches: list[tf.Tensor] = []
    for number, size in enumerate(tf.unstack(sizes, num=len(layout.replicas))):
        count = layout.replicas[number].num_micro_batches
        if count == 1:
            micro_batches.append(size)
        else:
            micro_batches.extend(tf.unstack(part_sizes_in_graph(size, [1.0] * count), num=count))
    return micro_batches


def rows_by_samples(rows: tf.Tensor, sizes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the number of rows of another kind than samples in each part, int32 scalars.

    They are split as the samples are, so a part without samples has none of them.

    Args:
        rows: Number of rows, int32 scalar.
        sizes: Samples of each part.
    """
    samples = tf.stack(sizes)
    first = tf.one_hot(0, len(sizes), dtype=tf.int32)
    shares = tf.where(tf.reduce_sum(samples) > 0, samples, first)
    split = part_sizes_in_graph(rows, tf.cast(shares, tf.float64))
    return tf.unstack(split, num=len(sizes))


def offsets_of(sizes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return how many rows come before those of each part, int32 scalars."""
    return tf.unstack(tf.cumsum(tf.stack(sizes), exclusive=True), num=len(sizes))


def rows_of_parts(sizes: Sequence[int], parts: Collection[int]) -> npt.NDArray[np.bool_]:
    """Return which samples of the batch belong to some of the parts.

    >>> rows_of_parts([2, 1, 1], [0, 2])
    array([ True,  True, False,  True])

    Args:
        sizes: Samples of each part.
        parts: Numbers of the parts.
    """
    return np.repeat([number in parts for number in range(len(sizes))], sizes)


def slices(whole: Any, sizes: Sequence[tf.Tensor], axis: int, rank: int) -> list[Any]:
    """Cut a tensor along an axis.

    Not by `tf.split`: TensorFlow's graph optimizer gives wrong numbers for the maximum of a
    monotonic function of what was split.
    """
    parts, begin = [], tf.constant(0)
    for size in sizes:
        begins = [begin if k == axis else 0 for k in range(rank)]
        lengths = [size if k == axis else -1 for k in range(rank)]
        parts.append(tf.slice(whole, begins, lengths))
        begin = begin + size
    return parts
