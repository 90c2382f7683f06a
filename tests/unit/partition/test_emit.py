"""Tensors of parts are joined, split and combined as in the whole step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings

from evener.partition.report import StepReport
from evener.partition.tensors import part_sizes_in_graph
from evener.plan import split_batch
from unit.partition.steps import caller, ops_in, partitioned

# With parts without samples at the beginning, in the middle and at the end.
SIZES = [(2, 1, 3), (0, 4, 2), (3, 0, 1), (4, 2, 0), (0, 0, 1), (1, 0, 0)]


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    numbers = np.arange(np.prod(shape)) - np.prod(shape) // 3
    return np.random.default_rng(sum(shape)).permutation(numbers).reshape(shape).astype(dtype)


def check(
    function: Callable[..., Any],
    shape: tuple[int, ...],
    *,
    axis: int = 0,
    dtype: tf.DType = tf.float32,
    gathers: bool | None = None,
    sizes: Any = SIZES,
) -> None:
    """Compare a step with the function itself, for batches in all kinds of parts."""
    spec = [None if k == axis else size for k, size in enumerate(shape)]
    step = partitioned(function, spec, axes=[axis], dtype=dtype)
    if gathers is not None:
        found = StepReport.of([step]).gathered
        assert bool(found) == gathers, found
    call = caller(step)
    for parts in sizes:
        x = numbers(*(sum(parts) if k == axis else size for k, size in enumerate(shape)))
        x = tf.cast(x, dtype)
        expected = tf.nest.flatten(function(x))
        for ours, theirs in zip(call(parts, [x]), expected, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=str(parts))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_are_split_and_joined_along_any_axis(axis: int) -> None:
    check(lambda x: x * 2.0, (3, 4, 5), axis=axis, gathers=False)


BLOCKS: dict[str, tuple[Callable[[tf.Tensor], Any], tuple[int, ...], int]] = {
    "concat": (lambda x: tf.concat([x, -x], 0), (6, 3), 0),
    "three": (lambda x: tf.exp(tf.concat([x, x * 0.5, -x], 0) / 9.0), (6, 3), 0),
    "columns": (lambda x: tf.concat([x, -x], 1), (3, 6), 1),
    "tile": (lambda x: tf.tile(x, [3, 1]), (6, 2), 0),
    "outer_merged": (lambda x: tf.reshape(x, [-1, 2]), (3, 6, 2), 1),
    "inner_merged": (lambda x: tf.reshape(x, [-1, 2]) + 1.0, (6, 3, 2), 0),
    "both_merged": (lambda x: tf.reshape(x, [-1]), (3, 6, 2), 1),
    "between": (lambda x: tf.reshape(x, [2, -1, 5]) * 2.0, (2, 3, 6, 4, 5), 2),
    "sums_of_blocks": (lambda x: tf.reduce_sum(tf.concat([x, -x * 2.0], 0), 0), (6, 3), 0),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_batch_may_be_an_inner_factor_of_an_axis(name: str) -> None:
    function, shape, axis = BLOCKS[name]
    check(function, shape, axis=axis)


COMBINED: dict[str, Callable[[tf.Tensor], Any]] = {
    "sum": lambda x: tf.reduce_sum(x, 0),
    "mean": lambda x: tf.reduce_mean(x, 0),
    "max": lambda x: tf.reduce_max(x, 0),
    "min": lambda x: tf.reduce_min(x, 0),
    "max_of_all": lambda x: tf.reduce_max(x),
    "all": lambda x: tf.reduce_all(x > 0, 0),
    "any": lambda x: tf.reduce_any(x > 5, 0),
    "prod": lambda x: tf.reduce_prod(x, 0),
}


@pytest.mark.parametrize("dtype", [tf.float32, tf.int32])
@pytest.mark.parametrize("name", COMBINED)
def test_partial_results_are_combined(name: str, dtype: tf.DType) -> None:
    if name == "mean" and dtype == tf.int32:
        dtype = tf.float64
    check(COMBINED[name], (6, 3), dtype=dtype, gathers=False)


def sorted_and_split_again(x: tf.Tensor) -> Any:
    """`sort` needs all rows; what comes out of it meets blocks of the batch."""
    blocks = tf.concat([x, -x], 0)
    return tf.sort(blocks, 0) * blocks + tf.reverse(blocks, [0])


def used_by_parts_and_once(x: tf.Tensor) -> Any:
    total = tf.reduce_sum(x, 0)
    return x * total, tf.sqrt(tf.abs(total)), total - tf.reduce_max(x)


def gradients_of_partial_results(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_max(x * x, 0) + tf.reduce_mean(x) ** 2 + tf.reduce_logsumexp(x / 9.0)
    return y, tape.gradient(y, x)


def largest_of_infinities(x: tf.Tensor) -> Any:
    """A part without samples does not put the largest number of the dtype in."""
    infinite = [tf.where(x > -1e9, sign * np.inf, x) for sign in (1.0, -1.0)]
    return [reduce(y, 0) for y in infinite for reduce in (tf.reduce_max, tf.reduce_min)]


def sizes_of_data(x: tf.Tensor) -> Any:
    count = tf.size(tf.where(x[:, 0] > 0))
    return tf.zeros([tf.shape(x)[0], count]) + x[:, :1], tf.zeros([count])


def constants_arguments_and_sizes(x: tf.Tensor) -> Any:
    sizes = (tf.shape(x), tf.size(x), tf.shape(x)[0] * 3)
    return tf.constant([1.0, 2.0]), x, *sizes, tf.zeros([2])


@pytest.mark.parametrize(
    ("function", "gathers"),
    [
        (sorted_and_split_again, None),
        (used_by_parts_and_once, False),
        (gradients_of_partial_results, None),
        (largest_of_infinities, None),
        (sizes_of_data, None),
        (constants_arguments_and_sizes, None),
    ],
)
def test_results_are_those_of_one_device(
    function: Callable[..., Any], gathers: bool | None
) -> None:
    check(function, (6, 3), gathers=gathers)


def pooled_twice(x: tf.Tensor) -> Any:
    """One gradient in the call of its pooling, and another that needs the mean over all parts."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return tape.gradient(y, x, y), tape.gradient(y, x, y - tf.reduce_mean(y, 0))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_a_gradient_of_pooling_finds_its_workspace(dtype: tf.DType) -> None:
    """oneDNN's kernels of two bytes and four need their pooling in the same call."""
    step = partitioned(pooled_twice, [None, 4, 4, 2], dtype=dtype)
    ops = {
        function.task.level: [node.op for node in function.builder.definition.node_def]
        for function in step.functions
        if "MaxPoolGrad" in ops_in(function.task)
    }
    first, second = (ops[level] for level in sorted(ops))
    assert first.count("MaxPool") == 1
    assert second.count("MaxPool") == (dtype == tf.float32)
    check(pooled_twice, (6, 4, 4, 2), dtype=dtype)


def test_the_static_shapes_of_results_are_those_of_the_step() -> None:
    step = partitioned(lambda x: (x @ tf.ones([3, 4]), tf.reduce_sum(x, 0)), [None, 3])
    called = tf.function(lambda x: step([x], tf.constant([1, 1, 0]))[0], autograph=False)
    results = called.get_concrete_function(tf.TensorSpec([None, 3])).structured_outputs
    assert [result.shape.as_list() for result in results] == [[None, 4], [3]]


NUMBERS = st.one_of(st.integers(0, 7), st.floats(0.0, 1e3, width=32))
SHARES = st.lists(NUMBERS, min_size=1, max_size=6).filter(lambda shares: sum(shares) > 0)
by_tensor = tf.function(part_sizes_in_graph, autograph=False)


@settings(max_examples=100)
@given(st.integers(0, 100_000), SHARES)
@example(512, [5.0, 3.0])
@example(3, [1.0, 1.0])
@example(1, [1.0, 1.0, 1.0])
@example(0, [1.0, 2.0])
@example(7, [0.0, 1.0, 0.0])
@example(10, [0.1, 0.2, 0.7])
def test_sizes_of_parts_are_those_of_split_batch(num_samples: int, shares: list[float]) -> None:
    in_graph = by_tensor(tf.constant(num_samples), tf.constant(shares, tf.float64))
    for sizes in (in_graph, part_sizes_in_graph(tf.constant(num_samples), shares)):
        assert sizes.dtype == tf.int32
        assert tuple(sizes.numpy()) == split_batch(num_samples, shares)
