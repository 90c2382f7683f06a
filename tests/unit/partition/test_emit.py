"""Tensors of parts are joined, split and combined as in the whole step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from evener.partition.report import StepReport
from unit.partition.steps import caller, ops_in, partitioned, run, tasks_of

# With parts without samples at the beginning, in the middle and at the end.
SIZES = [(2, 1, 3), (0, 4, 2), (3, 0, 1), (4, 2, 0), (0, 0, 1), (1, 0, 0)]


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return (
        rng.permutation(np.arange(np.prod(shape)) - np.prod(shape) // 3)
        .reshape(shape)
        .astype(dtype)
    )


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
        given = call(parts, [x])
        assert len(given) == len(expected)
        for ours, theirs in zip(given, expected, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=str(parts))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_are_split_and_joined_along_any_axis(axis: int) -> None:
    shape = [3, 4, 5]
    check(lambda x: x * 2.0, tuple(shape), axis=axis, gathers=False)


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


def test_blocks_are_gathered_and_split_again() -> None:
    """`sort` needs all rows; what comes out of it meets blocks of the batch."""

    def function(x: tf.Tensor) -> tf.Tensor:
        blocks = tf.concat([x, -x], 0)
        return tf.sort(blocks, 0) * blocks + tf.reverse(blocks, [0])

    check(function, (6, 3))


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


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_of_infinities(sign: float) -> None:
    """A part without samples does not put the largest number of the dtype in."""

    def function(x: tf.Tensor) -> Any:
        infinite = tf.where(x > -1e9, sign * np.inf, x)
        return tf.reduce_max(infinite, 0), tf.reduce_min(infinite, 0)

    check(function, (6, 3))


def test_a_partial_result_is_used_by_parts_and_once() -> None:
    def function(x: tf.Tensor) -> Any:
        total = tf.reduce_sum(x, 0)
        return x * total, tf.sqrt(tf.abs(total)), total - tf.reduce_max(x)

    check(function, (6, 3), gathers=False)


def test_gradients_of_partial_results() -> None:
    def function(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_max(x * x, 0) + tf.reduce_mean(x) ** 2 + tf.reduce_logsumexp(x / 9.0)
        return y, tape.gradient(y, x)

    check(function, (6, 3))


def test_kernels_that_need_samples_are_not_run_without() -> None:
    def function(x: tf.Tensor) -> Any:
        kernel = tf.reshape(tf.range(54.0) / 54.0, [3, 3, 2, 3])
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = tf.nn.conv2d(x, kernel, 1, "SAME")
            pooled = tf.nn.max_pool2d(y, 2, 2, "VALID")
        return pooled, tape.gradient(pooled, [x, kernel])

    check(function, (6, 4, 4, 2))


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


def test_sizes_of_data_are_the_same_in_all_parts() -> None:
    def function(x: tf.Tensor) -> Any:
        count = tf.size(tf.where(x[:, 0] > 0))
        return tf.zeros([tf.shape(x)[0], count]) + x[:, :1], tf.zeros([count])

    check(function, (6, 3))


def test_constants_arguments_and_sizes_are_returned() -> None:
    def function(x: tf.Tensor) -> Any:
        return (
            tf.constant([1.0, 2.0]),
            x,
            tf.shape(x),
            tf.size(x),
            tf.shape(x)[0] * 3,
            tf.zeros([2]),
        )

    check(function, (6, 3))


@pytest.mark.long
def test_the_static_shapes_of_results_are_those_of_the_step() -> None:
    step = partitioned(lambda x: (x @ tf.ones([3, 4]), tf.reduce_sum(x, 0)), [None, 3])
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([3], tf.int32)])
    def called(x: tf.Tensor, sizes: tf.Tensor) -> list[tf.Tensor]:
        results, _ = step([x], sizes)
        shapes.extend(result.shape.as_list() for result in results)
        return results

    called(tf.ones([2, 3]), tf.constant([1, 1, 0]))
    assert shapes[:2] == [[None, 4], [3]]


def test_a_step_serves_any_number_of_graphs() -> None:
    step = partitioned(lambda x: tf.reduce_sum(tf.square(x)), [None, 3])
    results = [run(step, parts, [tf.ones([6, 3])], [])[0] for parts in ((2, 2, 2), (6, 0, 0))]
    assert [float(result) for result in results] == [18.0, 18.0]


def test_every_part_runs_on_its_device() -> None:
    step = partitioned(lambda x: tf.exp(x), [None, 3])
    (task,) = tasks_of(step, "Exp")
    assert "Exp" in ops_in(task)

    @tf.function(autograph=False)
    def called(x: tf.Tensor) -> list[tf.Tensor]:
        return step([x], tf.constant([1, 1, 1]))[0]

    graph = called.get_concrete_function(tf.TensorSpec([None, 3])).graph
    calls = [op for op in graph.get_operations() if "PartitionedCall" in op.type]
    assert [op.device[-5:] for op in calls] == ["CPU:0", "CPU:1", "CPU:2"]
