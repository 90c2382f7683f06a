"""Nodes that are computed once run on the device of their variable, or of their largest input."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener.partition.tasks import HOST
from unit.partition.steps import node_of, partitioned, tasks_of


def home(step: Any, op: str) -> str:
    return step.partition.task_of[node_of(step, op)].where


def variable_on(device: str, shape: list[int]) -> tf.Variable:
    with tf.device(device):
        return tf.Variable(tf.ones(shape))


def test_an_update_runs_on_the_owner_of_the_variable() -> None:
    weight, momentum = variable_on("/CPU:2", [3, 4]), variable_on("/CPU:2", [3, 4])

    def step(x: tf.Tensor) -> tf.Tensor:
        gradient = tf.matmul(x, tf.ones([tf.shape(x)[0], 4]), transpose_a=True)
        momentum.assign(tf.sqrt(momentum) + gradient)
        weight.assign_sub(tf.sin(momentum) * 0.1)
        return tf.reduce_sum(x)

    made = partitioned(step, [None, 3])
    for op in ("Sqrt", "Sin", "AssignVariableOp", "AssignSubVariableOp", "ReadVariableOp"):
        assert {task.where for task in tasks_of(made, op)} == {"/device:CPU:2"}, op
    (products,) = tasks_of(made, "MatMul")
    assert products.is_parts


def test_two_owners_update_apart() -> None:
    first, second = variable_on("/CPU:1", [3]), variable_on("/CPU:2", [3])

    def step(x: tf.Tensor) -> tf.Tensor:
        first.assign_sub(tf.sin(tf.reduce_sum(x, 0)))
        second.assign_sub(tf.cos(tf.reduce_sum(x, 0)))
        return tf.reduce_sum(x)

    made = partitioned(step, [None, 3])
    assert home(made, "Sin") == "/device:CPU:1"
    assert home(made, "Cos") == "/device:CPU:2"


def test_a_pinned_operation_stays_where_it_was_put() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:1"):
            return tf.sort(x, axis=0)

    made = partitioned(step, [None, 3])
    assert home(made, "TopKV2") == "/device:CPU:1"


def test_what_belongs_to_nobody_is_on_the_first_device() -> None:
    made = partitioned(lambda x: (tf.sort(x, axis=0), tf.random.normal([3])), [None, 3])
    assert home(made, "TopKV2") == "/device:CPU:0"
    assert home(made, "RandomStandardNormal") == "/device:CPU:0"


def test_strings_are_on_the_host() -> None:
    with tf.device("/CPU:1"):
        weight = tf.Variable(1.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.strings.as_string(tf.reduce_sum(x) * weight)

    made = partitioned(step, [None, 3])
    assert home(made, "AsString") == HOST


def test_what_follows_a_large_tensor_is_computed_beside_it() -> None:
    large, small = variable_on("/CPU:2", [50, 50]), variable_on("/CPU:1", [])

    def step(x: tf.Tensor) -> tf.Tensor:
        penalty = tf.reduce_sum(tf.square(large.read_value()) * small.read_value())
        return tf.reduce_sum(x) + tf.exp(penalty)

    made = partitioned(step, [None, 3])
    assert home(made, "Square") == "/device:CPU:2"
    homes = {task.where for task in tasks_of(made, "Sum") if not task.is_parts}
    assert homes <= {"/device:CPU:2"}
