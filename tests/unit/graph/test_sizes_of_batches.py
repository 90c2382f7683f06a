"""Sizes that count samples: of arguments of equal first sizes, and of steps for one size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener.graph.dims import BATCH
from evener.graph.nodes import Graph
from evener.graph.rewrites import open_functions
from evener.graph.trace import FACTOR, find_sizes_of_batches, trace_step

SAMPLES = 8
"""As many as there are features: a number alone does not say which of both it is."""


def graph_of(step: Any, count: int) -> Graph:
    function = tf.function(step).get_concrete_function(tf.TensorSpec([count, SAMPLES]))
    graph = Graph(function.graph)
    open_functions(graph)
    return graph


def sizes_of(step: Any) -> dict[str, Any]:
    """Return the shapes and numbers that were found, by operation."""
    graph = graph_of(step, SAMPLES)
    found = find_sizes_of_batches(graph, graph_of(step, FACTOR * SAMPLES), SAMPLES)
    shapes = {tensor.node.op: shape for tensor, shape in found.shapes.items()}
    return {**shapes, **{f"{t.node.op} value": value for t, value in found.values.items()}}


def test_shapes_and_constants_that_grow_with_the_batch() -> None:
    def step(x: Any) -> Any:
        noise = tf.random.normal([x.shape[0], SAMPLES], seed=1)
        return tf.concat([x, noise], 0)

    found = sizes_of(step)
    assert found["RandomStandardNormal"] == (BATCH, SAMPLES)
    assert found["Const value"] == (BATCH, SAMPLES)
    assert found["ConcatV2"] == (2 * BATCH, SAMPLES)


def test_sizes_that_are_no_multiples_stay_numbers() -> None:
    def step(x: Any) -> Any:
        half = tf.random.normal([x.shape[0] // 2, SAMPLES], seed=1)
        more = tf.random.uniform([x.shape[0] + 1], seed=2)
        return tf.reduce_sum(half) + tf.reduce_sum(more) + tf.reduce_sum(x)

    found = sizes_of(step)
    assert found["RandomStandardNormal"] == (SAMPLES // 2, SAMPLES)
    assert found["RandomUniform"] == (SAMPLES + 1,)


def test_bodies_of_loops() -> None:
    def step(x: Any) -> Any:
        def body(count: Any, total: Any) -> Any:
            return count + 1, total + tf.random.stateless_uniform([x.shape[0], SAMPLES], [1, 2])

        return tf.while_loop(lambda count, _: count < 3, body, [0, tf.zeros([x.shape[0], SAMPLES])])

    found = sizes_of(step)
    assert found["StatelessRandomUniformV2"] == (BATCH, SAMPLES)


def test_unlike_graphs_say_nothing() -> None:
    def more_operations(x: Any) -> Any:
        return x + 1 if x.shape[0] == SAMPLES else x * 2 + 1

    def another_operation(x: Any) -> Any:
        return x + 1 if x.shape[0] == SAMPLES else x * 2

    def another_body(x: Any) -> Any:
        extra = 1 if x.shape[0] == SAMPLES else 2
        return tf.while_loop(
            lambda count, _: count < 3,
            lambda count, total: (count + 1, sum([total] * extra)),
            [0, x],
        )

    for step in (more_operations, another_operation, another_body):
        assert not sizes_of(step)


def test_a_step_that_only_takes_batches_of_one_size_is_traced() -> None:
    def step(x: Any) -> Any:
        if x.shape[0] != SAMPLES:
            raise ValueError("other batches")
        return tf.reduce_sum(x)

    spec = tf.TensorSpec([SAMPLES, 3])
    traced = trace_step(step, [spec], [0], autograph=False, num_samples=SAMPLES)
    assert traced.graph.inputs[0].shape == (BATCH, 3)


@pytest.mark.parametrize("features", [1, 4, SAMPLES])
def test_a_gradient_of_ones_has_rows_of_samples(features: int) -> None:
    weight = tf.Variable(np.ones((features, features), np.float32))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weight) ** 2) * float(x.shape[0])
        return tape.gradient(loss, weight)

    spec = tf.TensorSpec([SAMPLES, features])
    traced = trace_step(step, [spec], [0], autograph=False, num_samples=SAMPLES)
    shapes = {tensor.shape for node in traced.graph for tensor in node.outputs if tensor.shape}
    assert (BATCH, features) in shapes
    of_samples = [s for s in shapes if len(s) == 2 and s[0] == SAMPLES]
    # With as many features as samples, the weight has this shape.
    assert of_samples == ([(SAMPLES, SAMPLES)] if features == SAMPLES else [])


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
