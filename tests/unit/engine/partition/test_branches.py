"""What conditions call where parts without samples compute something else."""

from __future__ import annotations

import pytest
import tensorflow as tf

import evener
from evener.engine.partition.no_samples import branch_of, branches_of


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
    (function,) = [one for one in partitioned.functions if one.needs_samples]
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
        for one, other in zip(tf.nest.flatten(step(x)), given, strict=True):
            tf.debugging.assert_near(one, other, rtol=1e-4)
    (partitioned,) = distributed.partitioned_steps
    branches = [branches_of(one, partitioned.partition) for one in partitioned.functions]
    calls = [branch[1].definition.node_def for branch in branches if branch is not None]
    assert "PartitionedCall" in {node.op for nodes in calls for node in nodes}
