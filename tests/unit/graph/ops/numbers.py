"""Sizes used as numbers, and tensors that are made of sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from unit.graph.ops.op_case import Arg, B, OpCase, case, f32, loose

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


def beyond_int32(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
    """Numbers from 0 to 5 above 5e9 or -5e9, which are others in fewer bits."""
    return rng.choice([5_000_000_000, -5_000_000_000]) + rng.integers(0, 5, shape)


def rows_from(x: Any, *numbers: Any) -> list[Any]:
    """Return a number for every sample, counted from each of some numbers on."""
    return [tf.range(n, n + tf.shape(x, n.dtype)[0]) for n in numbers]


def few(n: Any) -> Any:
    """Return a number of few bits that is made of large ones."""
    return tf.reduce_max(n) - tf.reduce_min(n)


def in_loop(x: Any, n: Any) -> Any:
    return tf.while_loop(
        lambda k, _: k < 3,
        # Of one sample, TensorFlow does not know that a product has one row too.
        lambda k, z: [
            k + 1,
            tf.ensure_shape(z + tf.cast(rows_from(x, n[0] * 2)[0], tf.float32) * x[:, 0], z.shape),
        ],
        [0, x[:, 0]],
    )[1]


def chosen(x: Any, n: Any) -> Any:
    """Conditions on numbers, and rows that are counted in their branches."""
    largest = tf.reduce_max(n)
    answers = (largest > 0, largest // 4 < tf.shape(x, tf.int64)[0], tf.cast(largest, tf.int32) < 9)
    return [
        tf.cond(answer, lambda: rows_from(x, largest * 3)[0], lambda: rows_from(x, -largest)[0])
        for answer in answers
    ]


def after_rounds(x: Any, n: Any) -> Any:
    """A counter stays 0 where the number of rounds is negative."""
    rounds = tf.minimum(n[0], 3)
    counter = tf.while_loop(
        lambda k, _: k < rounds, lambda k, z: [k + 1, z + 1.0], [tf.zeros([], tf.int64), 0.0]
    )[0]
    return rows_from(x, counter)


# Of numbers n that are no int32: in every operation that is given a number by its symbols.
LARGE: dict[str, Callable[[Any, Any], Any]] = {
    "range": lambda x, n: [
        *rows_from(x, tf.reduce_min(n), tf.reduce_max(n) * 2, tf.reduce_sum(n), n[0] - n[-1]),
        tf.range(n[0], n[0] + 3 * tf.shape(x, tf.int64)[0], 3),
    ],
    "arithmetic": lambda x, n: rows_from(
        x,
        *(-n[0], n[0] * n[-1], n[0] * n[0] * n[0], n[0] // 3, n[0] % 7, tf.maximum(n[0], 3)),
        *(tf.abs(n[0]), n[0] * tf.size(x, tf.int64), tf.reduce_prod(tf.stack([n[0], 3]))),
    ),
    "casts": lambda x, n: rows_from(
        x,
        *(
            tf.cast(tf.cast(n[0], dtype), wide)
            for dtype in (tf.int8, tf.uint8, tf.int32, tf.uint32, tf.uint64, tf.float64)
            for wide in (tf.int32, tf.int64)
        ),
    ),
    "wrapped": lambda x, n: rows_from(
        x,
        tf.cast(tf.cast(n[0], tf.uint8) * 3, tf.int32),
        tf.cast(tf.cast(n[0], tf.int32) * 65599, tf.int64),
        tf.cast(n[0], tf.int32) * tf.size(x) // tf.size(x),
        tf.maximum(tf.cast(n[0], tf.int32) * 3, 7),
        tf.maximum(tf.cast(tf.cast(n[0], tf.int32), tf.int64) * 3, 7),
        tf.shape(tf.zeros([tf.cast(2**32 + few(n), tf.int32)]), tf.int64)[0],
    ),
    "fill": lambda x, n: (
        tf.fill([tf.shape(x, tf.int64)[0], few(n)], n[0]),
        tf.one_hot(n - n[0], tf.cast(few(n), tf.int32), tf.reduce_max(n), tf.reduce_min(n)),
        x * tf.linspace(tf.cast(n[0], tf.float32), 1.0, tf.shape(x)[0])[:, None],
    ),
    "slices": lambda x, n: (
        *(x[:, n[0] :], x[:, : n[0]], x[:, few(n) - 4 :], x[:, : n[0] - 2**32]),
        tf.slice(x, [0, few(n) % 3], [-1, 1]),
        tf.roll(x, n[0], 1),
    ),
    "conditions": chosen,
    "loop": in_loop,
    "rounds": after_rounds,
}

CASES: tuple[OpCase, ...] = (
    *(
        loose(
            f"beyond_int32_{name}",
            [f32(B, 4, states=(0,)), Arg((B,), beyond_int32, "int64", (0, None))],
            fn,
            gradient=False,
        )
        for name, fn in LARGE.items()
    ),
    *(
        case(
            name,
            "B 4",
            fn,
            gradient=name not in NUMBERS_ONLY,
            expect="any" if name in ACROSS else "sharded",
        )
        for name, fn in SIZES.items()
    ),
)
