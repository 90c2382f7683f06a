"""Arguments with the same first size: those that the step needs to have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from evener.graph.dims import BATCH
from evener.graph.trace import trace_step

ROWS = tf.TensorSpec([None, 3])
NUMBERS = tf.TensorSpec([None])
LABELS = tf.TensorSpec([None], tf.int32)


def sparse_loss(x: Any, y: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, x)


def _to_maximum(first: Any, second: Any, *rows: Any) -> list[Any]:
    largest = tf.maximum(tf.shape(first)[0], tf.shape(second)[0])
    return [tf.broadcast_to(each, [largest, 3]) for each in rows]


STEPS: dict[str, tuple[Callable[..., Any], list[tf.TensorSpec], list[set[int]]]] = {
    "added": (lambda x, y: x + y, [ROWS, ROWS], [{0, 1}]),
    "weighted": (lambda x, y: tf.reduce_sum(x, 1) * y, [ROWS, NUMBERS], [{0, 1}]),
    "labelled": (sparse_loss, [ROWS, LABELS], [{0, 1}]),
    "joined_beside": (lambda x, y: tf.concat([x, y], 1), [ROWS, ROWS], [{0, 1}]),
    "joined_below": (lambda x, y: tf.concat([x, y], 0), [ROWS, ROWS], [{0}, {1}]),
    "product_over_rows": (lambda x, y: tf.matmul(x, y, True), [ROWS, ROWS], [{0, 1}]),
    "product_of_pairs": (lambda x, y: x @ tf.transpose(y), [ROWS, ROWS], [{0}, {1}]),
    "reshaped_as": (lambda x, y: tf.reshape(x, tf.shape(y)), [ROWS, ROWS], [{0, 1}]),
    "summed_by": (lambda x, y: tf.math.unsorted_segment_sum(x, y, 4), [ROWS, LABELS], [{0, 1}]),
    "gathered_by": (lambda x, y: tf.gather(x, y), [ROWS, LABELS], [{0}, {1}]),
    # Keras broadcasts both to the maximum of their sizes.
    "taken_along_an_axis": (
        lambda x, y, z: keras.ops.take_along_axis(x, y, axis=1) - z,
        [ROWS, tf.TensorSpec([None, 2], tf.int32), tf.TensorSpec([None, 2])],
        [{0, 1, 2}],
    ),
    "alone_broadcast_to_a_maximum": (
        lambda x, y: (*_to_maximum(x, y, x), y),
        [ROWS, ROWS],
        [{0}, {1}],
    ),
    "another_broadcast_to_a_maximum": (
        lambda x, y, z: (*_to_maximum(x, y, x, z), y),
        [ROWS, ROWS, ROWS],
        [{0}, {1}, {2}],
    ),
    "weight_behind_a_loss": (
        lambda x, y, w: tf.reduce_mean(sparse_loss(x, y) * w),
        [ROWS, LABELS, NUMBERS],
        [{0, 1, 2}],
    ),
    "two_pairs": (
        lambda x, y, u, v: (x * y[:, None], u * v[:, None]),
        [ROWS, NUMBERS, ROWS, NUMBERS],
        [{0, 1}, {2, 3}],
    ),
    "in_a_branch": (
        lambda x, y: tf.cond(x[0, 0] > 0, lambda: x * y, lambda: x),
        [ROWS, ROWS],
        [{0, 1}],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_sizes_are_equal_where_the_step_needs_it(name: str) -> None:
    step, specs, expected = STEPS[name]
    unknown = range(len(specs))
    traced = trace_step(step, specs, [0] * len(specs), autograph=False, unknown=unknown)
    shapes = [tensor.shape for tensor in traced.graph.inputs]
    sizes = [shape[0] for shape in shapes if shape]
    found = [{k for k in unknown if sizes[k] == size} for size in dict.fromkeys(sizes)]
    assert found == expected
    assert set(map(frozenset, traced.equal_sizes)) == {
        frozenset(group) for group in expected if len(group) > 1
    }
    batch = {k for k, axis in enumerate(traced.batch_axes) if axis == 0}
    assert batch == {k for k in unknown if sizes[k] == BATCH}
    assert batch in expected


def test_the_batch_has_most_numbers_in_a_row() -> None:
    specs = [NUMBERS, tf.TensorSpec([None, 9]), tf.TensorSpec([None, 2])]
    traced = trace_step(
        lambda a, b, c: (a, b, c), specs, [0, 0, 0], autograph=False, unknown=(0, 1, 2)
    )
    assert traced.batch_axes == (None, 0, None)
