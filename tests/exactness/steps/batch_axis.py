"""Operations along the axis of the batch itself, each in a small step of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .case import BuiltStep, case, learn, mlp, to_regress

Used = Callable[[Any, Any], Any]


def along(name: str, *, last_bias: bool = True) -> Callable[[Used], Used]:
    """Register a step whose loss is a function of targets and outputs."""

    def add(function: Used) -> Used:
        @case(f"batch_axis/{name}")
        def build() -> BuiltStep:
            model = mlp(6, 10, 4, last_bias=last_bias)
            return learn(lambda x, y: function(y, model(x, training=True)), model, to_regress())

        return function

    return add


def near(a: Any, b: Any) -> Any:
    """Return the mean square of a difference."""
    return tf.reduce_mean(tf.square(a - b))


@along("cumulative_sum")
def cumulative_sum(y: Any, p: Any) -> Any:
    return 0.05 * near(tf.cumsum(p, axis=0), tf.cumsum(y, axis=0, exclusive=True))


@along("cumulative_sum_in_reverse")
def reverse_sum(y: Any, p: Any) -> Any:
    return 0.05 * near(tf.cumsum(p, axis=0, reverse=True), y)


@along("roll")
def roll(y: Any, p: Any) -> Any:
    return near(tf.roll(p, shift=2, axis=0), y) + near(p, tf.roll(y, shift=-1, axis=0))


@along("roll_of_both_axes")
def roll_of_both(y: Any, p: Any) -> Any:
    return near(tf.roll(p, shift=[1, 2], axis=[0, 1]), y)


@along("reverse")
def reverse(y: Any, p: Any) -> Any:
    return near(tf.reverse(p, axis=[0]), y) + 0.5 * near(p[::-1, ::-1], y)


@along("sort_by_column")
def sort(y: Any, p: Any) -> Any:
    return near(tf.sort(p, axis=0), tf.sort(y, axis=0))


@along("sort_by_feature")
def sort_features(y: Any, p: Any) -> Any:
    return near(tf.sort(p, axis=1), tf.sort(y, axis=1))


@along("argsort_and_gather")
def argsort(y: Any, p: Any) -> Any:
    order = tf.argsort(y[:, 0], direction="DESCENDING", stable=True)
    p = tf.gather(p, order)
    return near(p[1:], tf.gather(y, order)[:-1])


@along("largest_rows")
def largest(y: Any, p: Any) -> Any:
    _, rows = tf.math.top_k(p[:, 0], k=2)
    return near(tf.gather(p, rows), tf.gather(y, rows))


@along("argmax_of_columns")
def argmax(y: Any, p: Any) -> Any:
    best = tf.argmax(y, axis=0)
    picked = tf.gather_nd(p, tf.stack([best, tf.range(4, dtype=tf.int64)], axis=1))
    return tf.reduce_mean((picked - 1.0) ** 2)


@along("every_other_row")
def strided(y: Any, p: Any) -> Any:
    return near(p[::2], y[::2]) + 0.5 * near(p[1::2], y[1::2])


@along("first_and_last_row")
def ends(y: Any, p: Any) -> Any:
    return near(p[0], y[-1]) + near(p[-1:], y[:1]) + near(p[: tf.shape(p)[0] // 2 + 1], 0.0)


@along("rows_moved_to_columns", last_bias=False)
def transposed(y: Any, p: Any) -> Any:
    q = tf.transpose(p)
    return near(tf.nn.softmax(q, axis=1), tf.nn.softmax(tf.transpose(y), axis=1)) * 20.0


@along("flattened_and_restored")
def flattened(y: Any, p: Any) -> Any:
    flat = tf.reshape(p, [-1])
    pairs = tf.reshape(flat, [-1, 2])
    return near(tf.reshape(pairs[:, ::-1], tf.shape(y)), y)


@along("rows_folded_in_columns")
def folded(y: Any, p: Any) -> Any:
    columns = tf.reshape(p, [4, -1])
    return near(columns, tf.reshape(y, [4, -1])) + tf.square(tf.reduce_mean(columns[0]))


@along("repeated_and_tiled")
def repeated(y: Any, p: Any) -> Any:
    return near(tf.repeat(p, 3, axis=0), tf.tile(y, [3, 1]))


@along("stacked_before_the_batch")
def stacked(y: Any, p: Any) -> Any:
    both = tf.stack([p, y, p + y])
    return tf.reduce_mean(tf.math.reduce_variance(both, axis=0)) + near(both[0], both[1])


@along("products_of_all_pairs")
def gram(y: Any, p: Any) -> Any:
    return 0.1 * near(p @ tf.transpose(p), tf.linalg.matmul(y, y, transpose_b=True))


@along("masked_rows_of_unknown_number")
def masked(y: Any, p: Any) -> Any:
    keep = y[:, 0] > -1.0
    kept = tf.boolean_mask(p, keep)
    rows = tf.where(keep)[:, 0]
    back = tf.scatter_nd(rows[:, None], kept, tf.cast(tf.shape(p), tf.int64))
    return near(back, y) + tf.reduce_sum(kept) / tf.cast(tf.size(rows), tf.float32) ** 2


@along("segments_of_unique_values")
def segments(y: Any, p: Any) -> Any:
    kinds, place = tf.unique(tf.cast(tf.math.floor(y[:, 0]), tf.int32))
    number = tf.size(kinds)
    means = tf.math.unsorted_segment_mean(p, place, number)
    return near(tf.gather(means, place), y) + tf.reduce_mean(
        tf.math.unsorted_segment_max(p, place, number) ** 2
    )


@along("differences_and_moving_means")
def moving_means(y: Any, p: Any) -> Any:
    padded = tf.pad(p, [[1, 1], [0, 0]], mode="REFLECT")
    means = (padded[:-2] + padded[1:-1] + padded[2:]) / 3.0
    return near(means, y) + 0.2 * tf.reduce_mean(tf.abs(p[1:] - p[:-1]) ** 1.5)


@along("convolved_over_the_batch")
def convolved(y: Any, p: Any) -> Any:
    kernel = tf.constant([0.25, 0.5, 0.25])[:, None, None] * tf.eye(4)[None]
    smooth = tf.nn.conv1d(p[None], kernel, stride=1, padding="SAME")[0]
    return near(smooth, y)


@along("principal_directions")
def principal(y: Any, p: Any) -> Any:
    centred = p - tf.reduce_mean(p, axis=0)
    covariance = tf.matmul(centred, centred, transpose_a=True)
    covariance /= tf.cast(tf.shape(p)[0], tf.float32)
    return near(p, y) - 0.1 * tf.linalg.logdet(covariance + tf.eye(4))


@along("distance_to_the_nearest_other")
def nearest(y: Any, p: Any) -> Any:
    far = tf.reduce_sum((p[:, None] - p[None]) ** 2, axis=2) + 1e6 * tf.eye(tf.shape(p)[0])
    closest = tf.sqrt(tf.reduce_min(far, axis=1) + 1e-2)
    return near(p, y) - 0.1 * tf.reduce_mean(tf.math.log(closest))


@along("normalised_over_all_axes")
def normalised(y: Any, p: Any) -> Any:
    scaled = (p - tf.reduce_min(p)) / (tf.reduce_max(p) - tf.reduce_min(p))
    return near(scaled, tf.sigmoid(y)) * 5.0


@along("product_over_the_batch")
def product(y: Any, p: Any) -> Any:
    chance = tf.reduce_prod(1.0 - 0.05 * tf.sigmoid(p - y), axis=0)
    return -tf.reduce_mean(tf.math.log(1.05 - chance))
