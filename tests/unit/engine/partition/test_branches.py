"""What conditions call where parts without samples compute something else."""

from __future__ import annotations

import pytest
import tensorflow as tf

import evener
from evener.engine.partition.build import branch_of


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
