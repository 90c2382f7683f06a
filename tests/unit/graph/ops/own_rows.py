"""Rows by the numbers of samples, and by what only looks like them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unit.graph.ops.op_case import OpCase, case, loose


def numbers(x: Any) -> Any:
    return tf.range(tf.shape(x)[0])


def chosen(x: Any, label: Any) -> Any:
    return tf.gather_nd(x, tf.stack([numbers(x), label], 1))


def written(x: Any, label: Any) -> Any:
    shape = tf.stack([tf.shape(x)[0], 4])
    return tf.scatter_nd(tf.stack([numbers(x), label], 1), x[:, 0], shape)


def changed(x: Any) -> Any:
    """As the targets of Q-learning are made."""
    label = tf.argmax(x, 1, output_type=tf.int32)
    return tf.tensor_scatter_nd_update(x, tf.stack([numbers(x), label], 1), x[:, 1])


def added_twice(x: Any) -> Any:
    """Two numbers of every row, which may be the same."""
    label = tf.argmax(x, 1, output_type=tf.int32)
    rows = tf.tile(numbers(x)[:, None], [1, 2])
    places = tf.stack([rows, tf.stack([label, label // 2], 1)], 2)
    return tf.tensor_scatter_nd_add(x, places, x[:, :2])


def added_flat(x: Any) -> Any:
    """The rows of a sample are together along one axis."""
    places = 4 * numbers(x) + tf.argmax(x, 1, output_type=tf.int32)
    return tf.tensor_scatter_nd_add(tf.reshape(x, [-1]), places[:, None], x[:, 0])


def changed_next_rows(x: Any, label: Any) -> Any:
    """Not its own row, although it is made of the numbers of the samples."""
    rows = (numbers(x) + 1) % tf.shape(x)[0]
    return tf.tensor_scatter_nd_add(x, tf.stack([rows, label], 1), x[:, 1])


def chosen_in_batches(x: Any) -> Any:
    """TensorFlow counts the samples by a grid of their numbers."""
    places = tf.argsort(x[:, :, 0], 1)[:, :2, None]
    return tf.gather_nd(x, places, batch_dims=1)


def twice_transposed(x: Any) -> Any:
    """Two numbers of every sample, along the second axis first."""
    rows = tf.transpose(tf.zeros_like(x[:, :2], tf.int32)) + numbers(x) * tf.ones([1], tf.int32)
    return tf.gather_nd(x, tf.stack([tf.transpose(rows), tf.argsort(x, 1)[:, :2]], 2))


def of_other_rows(x: Any) -> Any:
    """Not its own rows: twice the number of a sample."""
    rows = numbers(x) * tf.fill([1], 2) // 2 * tf.constant([2]) % tf.shape(x)[0]
    return tf.gather_nd(x, tf.stack([rows, tf.argmax(x, 1, output_type=tf.int32)], 1))


def reversed_rows(x: Any) -> Any:
    """Not its own row."""
    return tf.gather(x, tf.shape(x)[0] - 1 - numbers(x))


def next_rows(x: Any) -> Any:
    """Not its own row, although it is made of the numbers of the samples."""
    return tf.gather(x, (numbers(x) + 1) % tf.shape(x)[0])


def flat(x: Any, label: Any) -> Any:
    """A position that may be in the next sample's row: ``label`` is larger than 2."""
    last = 3 * tf.shape(x)[0] - 1
    return tf.gather(tf.reshape(x[:, :3], [-1]), tf.minimum(3 * numbers(x) + label, last))


def best(x: Any) -> Any:
    return tf.nn.top_k(x, 2).values


def of_best(x: Any) -> Any:
    places = tf.argmax(x, 1, output_type=tf.int32)
    flat_places = 4 * numbers(x) + places
    return tf.math.unsorted_segment_sum(x[:, 0], flat_places, 4 * tf.shape(x)[0])


def crops(x: Any, boxes: Any) -> Any:
    return tf.image.crop_and_resize(x, boxes, numbers(x), [2, 3])


def two_crops(x: Any, boxes: Any) -> Any:
    count = tf.shape(x)[0]
    owners = tf.reshape(tf.tile(numbers(x)[:, None], [1, 2]), [-1])
    return tf.image.crop_and_resize(x, tf.reshape(boxes, [2 * count, 4]), owners, [2, 2])


CASES: tuple[OpCase, ...] = (
    case("own_row", "B 4", lambda x: tf.gather(x, numbers(x))),
    loose("chosen_by_label", "B 4, int<4 B", chosen),
    loose("written_by_label", "B 4, int<4 B", written),
    case("changed_by_label", "distinct B 4", changed),
    case("added_twice", "distinct B 4", added_twice),
    case("added_flat", "distinct B 4", added_flat),
    case("chosen_in_batches", "distinct B 4 3", chosen_in_batches),
    case("twice_transposed", "distinct B 4", twice_transposed),
    loose("of_other_rows", "distinct B 4", of_other_rows),
    loose("changed_next_rows", "B 4, int<4 B", changed_next_rows),
    loose("reversed_rows", "B 4", reversed_rows),
    loose("next_rows", "B 4", next_rows),
    loose("flat_beyond_the_row", "B 4, int<4 B", flat),
    case("best_two", "distinct B 4", best),
    case("sorted_rows", "distinct B 4", lambda x: tf.sort(x, 1)),
    loose("segments_of_best", "distinct B 4", of_best),
    loose("crop_of_each", "B 5 5 2, positive B 4", crops, tolerance=1e-4),
    loose("two_crops_of_each", "B 5 5 2, positive B 2 4", two_crops, tolerance=1e-4),
    case(
        "steps_of_three",
        "B 4",
        lambda x: x + tf.cast(tf.range(0, 3 * tf.shape(x)[0], 3), tf.float32)[:, None],
    ),
)
