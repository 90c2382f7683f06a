"""Branches of conditions for parts without samples, which compute something else."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.partition.build import branch_of, branches_of


@pytest.mark.parametrize(("num_micro_batches", "operations"), [(2, ["PartitionedCall"]), (1, None)])
def test_a_task_that_stays_whole_is_called_by_a_branch_and_is_none(
    num_micro_batches: int, operations: list[str] | None
) -> None:
    """TensorFlow does not optimize a branch that stays whole: its convolutions are slow."""
    plan = evener.Plan.data_parallel(["cpu:0", "cpu:1"], num_micro_batches=num_micro_batches)
    kernel = tf.Variable(tf.ones([3, 3, 2, 4]))
    step = evener.distribute(lambda x: tf.reduce_sum(tf.nn.conv2d(x, kernel, 1, "SAME")), plan=plan)
    x = tf.ones([8, 5, 5, 2])
    assert float(step(x)) == pytest.approx(float(tf.reduce_sum(tf.nn.conv2d(x, kernel, 1, "SAME"))))
    (partitioned,) = step.partitioned_steps
    (function,) = [function for function in partitioned.functions if function.needs_samples]
    branch = branch_of(function, partitioned.partition)
    assert not branch.definition.attr["_noinline"].b
    if operations is None:
        assert branch is function.builder
    else:
        assert function.builder.definition.attr["_noinline"].b
        assert [node.op for node in branch.definition.node_def] == operations


def test_a_part_without_samples_has_the_sizes_that_kernels_know_alone() -> None:
    """A convolution of no samples gives its input's size, which the next one does not take."""
    first, second = tf.random.normal([3, 5, 4]), tf.random.normal([3, 4, 6])

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch([first, second])
            x = tf.nn.relu(tf.nn.conv1d(x, first, 2, "SAME") + 0.1)
            x = tf.nn.conv1d(x, second, 2, "SAME")
            loss = tf.reduce_mean(x * x)
        return x, loss, tape.gradient(loss, [first, second])

    distributed = evener.distribute(step, devices=["cpu:0", "cpu:1", "cpu:2"], shares=[1, 1, 1])
    for num_samples, length in ((8, 16), (6, 21), (1, 18), (2, 11)):
        x = tf.random.normal([num_samples, length, 5])
        given = tf.nest.flatten(distributed(x))
        for wanted, got in zip(tf.nest.flatten(step(x)), given, strict=True):
            tf.debugging.assert_near(wanted, got, rtol=1e-4)
    (partitioned,) = distributed.partitioned_steps
    branches = [branches_of(function, partitioned.partition) for function in partitioned.functions]
    skipped = [branch[1].definition.node_def for branch in branches if branch is not None]
    operations = {node.op for nodes in skipped for node in nodes}
    assert "Conv2D" in operations and "Relu" not in operations


def test_a_part_without_samples_knows_a_length_from_a_padded_one() -> None:
    """The last convolution is given padded rows alone, as causal ones of audio models are."""
    first, second = (tf.random.stateless_normal([3, 5, 5], [1, seed]) for seed in (2, 3))

    def step(x: tf.Tensor) -> tf.Tensor:
        rows = tf.nn.conv1d(x, first, 2, "VALID")
        padded = tf.pad(rows, [[0, 0], [2, 0], [0, 0]])
        centred = padded - tf.reduce_mean(padded, 0)
        return tf.nn.conv1d(tf.concat([centred, centred], 1), second, 1, "VALID")

    step = tf.autograph.experimental.do_not_convert(step)
    parts = evener.distribute(step, devices=["cpu:0", "cpu:1", "cpu:2"], shares=[1, 1, 1])
    for num_samples, length in ((6, 7), (2, 7), (1, 9), (5, 11)):
        x = tf.random.stateless_normal([num_samples, length, 5], [3, num_samples])
        tf.debugging.assert_near(step(x), parts(x), rtol=1e-4, atol=1e-4)


def test_matrices_of_a_part_without_samples_are_not_made_up() -> None:
    """A convolution alone knows a size here, and what is behind it fails on matrices of zeros."""
    kernel = tf.random.stateless_normal([3, 5, 4], [1, 2])

    def step(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            rows = tf.nn.conv1d(x, kernel, 2, "SAME")
            factor = tf.linalg.cholesky(tf.matmul(rows, rows, transpose_a=True) + tf.eye(4))
            solved = tf.linalg.triangular_solve(factor, tf.linalg.matrix_transpose(rows))
            solved = tf.matmul(tf.linalg.inv(factor), solved)
        return solved, *tape.gradient(solved, [x, kernel])

    step = tf.autograph.experimental.do_not_convert(step)
    parts = evener.distribute(step, devices=["cpu:0", "cpu:1", "cpu:2"], shares=[2, 0, 1])
    for length in (6, 9):
        x = tf.random.stateless_normal([6, length, 5], [3, 4])
        for given, expected in zip(parts(x), tf.function(step)(x), strict=True):
            np.testing.assert_allclose(given, expected, rtol=1e-3, atol=1e-4)
    assert not parts.report().gathered


def numbers_first(x: tf.Tensor) -> tf.Tensor:
    count = tf.shape(x)[0]
    return x + tf.cast(tf.range(count), tf.float32)[:, None] + tf.ones([count, 2])


def sizes_first(x: tf.Tensor) -> tf.Tensor:
    count = tf.shape(x)[0]
    return x * tf.ones([count, 2]) - tf.cast(tf.range(count), tf.float32)[:, None]


@pytest.mark.parametrize("chosen", [1.0, -1.0])
def test_branches_ask_for_numbers_in_orders_of_their_own(chosen: float) -> None:
    """One begins with the samples of the part, the other with those of the parts before it."""

    def step(x: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        return tf.cond(c > 0, lambda: numbers_first(x), lambda: sizes_first(x))

    x = tf.reshape(tf.range(14.0), [7, 2])
    parts = evener.distribute(
        step, devices=["cpu:0", "cpu:1", "cpu:2"], shares=[4, 0, 3], in_axes=(0, None)
    )
    expected = numbers_first(x) if chosen > 0 else sizes_first(x)
    assert (parts(x, tf.constant(chosen)).numpy() == expected.numpy()).all()
    assert not parts.report().gathered


@pytest.mark.parametrize("shares", [[4, 0, 3], [0, 1, 0]])
def test_a_part_without_samples_skips_kernels_in_loops(shares: list[int]) -> None:
    """The loop runs its rounds all the same; convolutions and scatters fail without samples."""
    kernel = tf.random.stateless_normal([3, 3, 2, 2], [1, 2])

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            rounds, y = tf.while_loop(
                lambda k, _: k < 3,
                lambda k, y: (k + 1, tf.tanh(tf.nn.conv2d(y, kernel, 1, "SAME"))),
                (0, x),
            )
            loss = tf.reduce_sum(y * y) * tf.cast(rounds, tf.float32)
        return loss, *tape.gradient(loss, [x, kernel])

    step = tf.autograph.experimental.do_not_convert(step)
    x = tf.random.stateless_normal([sum(shares), 4, 4, 2], [3, 4])
    parts = evener.distribute(step, devices=["cpu:0", "cpu:1", "cpu:2"], shares=shares)
    for given, expected in zip(parts(x), tf.function(step)(x), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
    assert not parts.report().gathered
