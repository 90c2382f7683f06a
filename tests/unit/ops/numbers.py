"""Sizes used as numbers, and tensors that are made of sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unit.ops.op_case import (
    B,
    OpCase,
    case,
    f32,
)

# Sizes used as numbers, and tensors made of sizes.
SIZES: dict[str, Callable[[Any], Any]] = {
    "shape": lambda x: tf.shape(x),
    "shape_n": lambda x: tf.shape_n([x, tf.transpose(x)]),
    "size": lambda x: tf.size(x),
    "rank": lambda x: tf.rank(x),
    "shape_64": lambda x: tf.shape(x, tf.int64)[0] * 2,
    "shape_of_product": lambda x: tf.shape(tf.matmul(x, x, transpose_a=True)),
    "divided_by_size": lambda x: x / tf.cast(tf.shape(x)[0], tf.float32),
    "sum_by_size": lambda x: tf.reduce_sum(x, 0) / tf.cast(tf.shape(x)[0], tf.float32),
    "range": lambda x: tf.range(tf.shape(x)[0]),
    "range_times": lambda x: x * tf.cast(tf.range(tf.shape(x)[0]), tf.float32)[:, None],
    "range_64": lambda x: tf.range(1, tf.shape(x, tf.int64)[0] * 2, 2),
    "fill": lambda x: tf.fill([tf.shape(x)[0], 3], 2.0),
    "zeros": lambda x: tf.zeros([tf.shape(x)[0], 2]) + x[:, :1],
    "zeros_in_front": lambda x: tf.concat([tf.zeros([tf.shape(x)[0], 2]), x], 1),
    "ones": lambda x: tf.ones(tf.shape(x)) * x,
    "eye": lambda x: tf.eye(tf.shape(x)[0]) @ x,
    "eye_of_samples": lambda x: tf.eye(4, batch_shape=[tf.shape(x)[0]]) * x[:, None],
    "linspace": lambda x: x * tf.linspace(0.0, 1.0, tf.shape(x)[0])[:, None],
    "meshgrid": lambda x: tf.meshgrid(x[:, 0], x[:, 1]),
    "meshgrid_ij": lambda x: tf.meshgrid(x[:, 0], tf.range(3.0), indexing="ij"),
    "one_hot_of_range": lambda x: tf.one_hot(tf.range(tf.shape(x)[0]) % 3, 3),
    "broadcast_static": lambda x: tf.broadcast_static_shape(x.shape, x.shape)[1] * x,
    "broadcast_dynamic": lambda x: tf.broadcast_dynamic_shape(tf.shape(x), [1, 4]),
    "ensure_shape": lambda x: tf.ensure_shape(x, [None, 4]) * 2,
    "mask_of_lengths": lambda x: tf.sequence_mask(tf.range(tf.shape(x)[0]) % 4, 4),
}
NUMBERS_ONLY = (
    "shape shape_n size rank shape_64 shape_of_product range range_64 fill one_hot_of_range "
    "broadcast_dynamic mask_of_lengths"
).split()
# A table of one row and one column for every sample.
ACROSS = ("eye", "meshgrid")

CASES: tuple[OpCase, ...] = (
    *(
        case(
            name,
            fn,
            f32(B, 4),
            gradient=name not in NUMBERS_ONLY,
            expect="any" if name in ACROSS else "sharded",
        )
        for name, fn in SIZES.items()
    ),
)
