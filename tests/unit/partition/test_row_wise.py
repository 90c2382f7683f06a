"""Functions of a batch that compute each row from that row alone, and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from evener.partition.shard import is_row_wise

SPECS = (
    tf.TensorSpec([None, 6, 6, 3], tf.float32),
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([None], tf.string),
)
SIZE = 7
TABLE = np.arange(5, dtype=np.float32)
KERNEL = np.ones((3, 3, 3, 2), np.float32)

ROW_WISE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "as it is": lambda x, k, s: (x, k, s),
    "scaled": lambda x, k, s: x / 255.0 - 0.5,
    "one hot": lambda x, k, s: tf.one_hot(k, 5),
    "looked up": lambda x, k, s: tf.gather(tf.constant(TABLE), k),
    "resized": lambda x, k, s: tf.image.resize(x, (4, 4)),
    "flipped": lambda x, k, s: tf.image.flip_left_right(x),
    "cropped": lambda x, k, s: x[:, 1:4, 2:5],
    "standardised": lambda x, k, s: tf.image.per_image_standardization(x),
    "convolved": lambda x, k, s: tf.nn.relu(tf.nn.conv2d(x, tf.constant(KERNEL), 1, "SAME")),
    "flat": lambda x, k, s: tf.reshape(x, [tf.shape(x)[0], -1]),
    "flat by a size": lambda x, k, s: tf.reshape(x, [-1, 108]),
    "with ones": lambda x, k, s: (x, tf.ones([tf.shape(x)[0], 1])),
    "with zeros like": lambda x, k, s: tf.stack([k, tf.zeros_like(k)], 1),
    "chosen": lambda x, k, s: tf.where(k > 2, k, -k),
    "strings": lambda x, k, s: tf.strings.length(s),
    "transposed": lambda x, k, s: tf.transpose(tf.transpose(x, [1, 0, 2, 3]) + 1, [1, 0, 2, 3]),
    "a mean of each": lambda x, k, s: x - tf.reduce_mean(x, [1, 2, 3], keepdims=True),
    "divided by its label": lambda x, k, s: 100 // (k + 1),
    "weights of classes": lambda x, k, s: (x, k, tf.gather([1.0, 2.0, 3.0, 4.0, 5.0], k)),
}


def mixed(x: Any, k: Any, s: Any) -> Any:
    other = tf.random.stateless_uniform([tf.shape(x)[0]], [1, 2], 0, 4, tf.int32)
    return x + tf.cast(tf.reshape(other, [-1, 1, 1, 1]), tf.float32)


def printed(x: Any, k: Any, s: Any) -> Any:
    tf.print(k)
    return x


OTHERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mean of the batch": lambda x, k, s: x - tf.reduce_mean(x),
    "mean over the batch": lambda x, k, s: x - tf.reduce_mean(x, 0),
    "largest of the batch": lambda x, k, s: x / tf.reduce_max(x),
    "reversed": lambda x, k, s: tf.reverse(x, [0]),
    "next row": lambda x, k, s: tf.roll(x, 1, 0),
    "mixed with the other half": lambda x, k, s: 0.5 * x + 0.5 * tf.reverse(x, [0]),
    "sorted": lambda x, k, s: tf.sort(k),
    "summed up": lambda x, k, s: tf.cumsum(k),
    "distances": lambda x, k, s: tf.matmul(tf.one_hot(k, 5), tf.one_hot(k, 5), transpose_b=True),
    "number of rows": lambda x, k, s: x / tf.cast(tf.shape(x)[0], tf.float32),
    "numbers of rows": lambda x, k, s: k + tf.range(tf.shape(k)[0]),
    "backwards": lambda x, k, s: x[::-1],
    "every second": lambda x, k, s: x[::2],
    "a part": lambda x, k, s: x[:2],
    "without the first": lambda x, k, s: x[1:],
    "one number": lambda x, k, s: tf.reduce_sum(k),
    "twice": lambda x, k, s: tf.concat([k, k], 0),
    "repeated": lambda x, k, s: tf.repeat(k, 2),
    "masked": lambda x, k, s: tf.boolean_mask(k, k > 2),
    "a constant": lambda x, k, s: (x, tf.constant([1.0, 2.0])),
    "first row": lambda x, k, s: x - x[:1],
    "longest of the batch": lambda x, k, s: tf.cast(tf.sequence_mask(k), tf.float32),
    "shuffled": lambda x, k, s: tf.random.experimental.stateless_shuffle(k, seed=[1, 2]),
    "drawn by rows": mixed,
    "row by row": lambda x, k, s: tf.map_fn(lambda row: row + 1, x),
    "a condition": lambda x, k, s: tf.cond(tf.reduce_sum(k) > 3, lambda: x, lambda: x + 1),
    "printed": printed,
}


def flat(function: Callable[[Any, Any, Any], Any]) -> Callable[..., list[Any]]:
    return lambda *tensors: tf.nest.flatten(function(*tensors))


@pytest.mark.parametrize("name", ROW_WISE)
def test_functions_of_single_rows(name: str) -> None:
    function = flat(ROW_WISE[name])
    assert is_row_wise(function, SPECS)
    rng = np.random.default_rng(1)
    x = tf.constant(rng.random((SIZE, 6, 6, 3), np.float32))
    k = tf.constant(rng.integers(0, 5, SIZE, np.int32))
    s = tf.constant([b"a" * length for length in k.numpy()])
    whole = tf.function(function)(x, k, s)
    for rows in ([3], [0, 2, 6], [5, 1]):
        some = tf.function(function)(*(tf.gather(each, rows) for each in (x, k, s)))
        for found, expected in zip(some, whole, strict=True):
            np.testing.assert_array_equal(found, tf.gather(expected, rows))


@pytest.mark.parametrize("name", OTHERS)
def test_functions_of_other_rows(name: str) -> None:
    assert not is_row_wise(flat(OTHERS[name]), SPECS)
