"""Functions of one sample that `tf.vectorized_map` applies to all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unit.graph.ops.op_case import OpCase, case

WEIGHTS = [[0.3, -0.2], [0.1, 0.5], [-0.4, 0.2], [0.6, 0.1]]


def gradient_of_sample(row: Any) -> Any:
    """Return the gradient of the weights for one sample, as differential privacy needs it."""
    with tf.GradientTape() as tape:
        weights = tf.constant(WEIGHTS)
        tape.watch(weights)
        loss = tf.reduce_sum(tf.tanh(row[None] @ weights) ** 2)
    return tf.clip_by_norm(tape.gradient(loss, weights), 0.1)


OF_ROWS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda row: row * tf.reduce_sum(row),
    "mean": lambda row: row - tf.reduce_mean(row, axis=-1, keepdims=True),
    "largest": lambda row: tf.reduce_max(row) + tf.gather(row, tf.argmax(row)),
    "reversed": lambda row: tf.reverse(row, [0]),
    "product": lambda row: tf.tanh(row[None] @ tf.constant(WEIGHTS))[0],
    "gradient": gradient_of_sample,
}

CASES: tuple[OpCase, ...] = (
    *(
        case(f"vectorized_{name}", "distinct B 4", lambda x, fn=fn: tf.vectorized_map(fn, x))
        for name, fn in OF_ROWS.items()
    ),
    case(
        "vectorized_axes",
        "distinct B 3 3 2",
        lambda x: tf.vectorized_map(lambda image: tf.reduce_max(image, [0, 1]), x),
    ),
)
