"""Bodies of loops and conditions: which variables are read before them, and which not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.graph.nodes import Graph, Node
from evener.graph.rewrites import CONDITIONS, LARGEST_TABLE, LOOPS, num_leading, open_functions

FLOATS = tf.TensorSpec([None, 3])


def opened(function: Callable[..., Any], *specs: tf.TensorSpec) -> Graph:
    graph = Graph(tf.function(function).get_concrete_function(*(specs or [FLOATS])).graph)
    open_functions(graph)
    return graph


def functional(graph: Graph) -> list[Node]:
    return [node for node in graph if node.op in LOOPS | CONDITIONS]


def reads(graph: Graph) -> list[Node]:
    return [node for node in graph if node.op == "ReadVariableOp"]


def test_a_read_comes_out_of_a_loop() -> None:
    weight = tf.Variable(2.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = x * weight + weight
        return x

    graph = opened(step)
    (loop,) = functional(graph)
    (read,) = reads(graph)
    assert loop.op == "StatelessWhile"
    assert graph.nodes.index(read) < graph.nodes.index(loop)
    assert read.outputs[0] in loop.inputs
    assert all(tensor.dtype != tf.resource for tensor in (*loop.inputs, *loop.outputs))
    for body in loop.bodies.values():
        assert not reads(body)
        assert [t.dtype for t in body.inputs] == [t.dtype for t in loop.inputs]
    place = loop.inputs.index(read.outputs[0])
    users = [n for n in loop.bodies["body"] if loop.bodies["body"].inputs[place] in n.inputs]
    assert {user.op for user in users} >= {"Mul", "AddV2"}
    assert loop.static_shapes[place] == ()


def test_a_read_comes_out_of_nested_loops() -> None:
    weight = tf.Variable([1.0, 2.0, 3.0])

    def step(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(2):
            for _ in tf.range(2):
                x = x * weight
        return x

    graph = opened(step)
    (loop,) = functional(graph)
    assert len(reads(graph)) == 1
    (inner,) = functional(loop.bodies["body"])
    assert not reads(loop.bodies["body"])
    assert inner.op == "StatelessWhile"


def test_a_read_comes_out_of_a_condition_and_its_branches() -> None:
    first, second = tf.Variable(2.0), tf.Variable(3.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x * first, lambda: x * second + first)

    graph = opened(step)
    (condition,) = functional(graph)
    assert condition.op == "StatelessIf"
    assert len(reads(graph)) == 2
    assert list(condition.bodies) == ["then_branch", "else_branch"]
    assert not any(reads(body) for body in condition.bodies.values())
    assert num_leading(condition) == 1
    for body in condition.bodies.values():
        given = [t.dtype for t in condition.inputs[1:]]
        assert [t.dtype for t in body.inputs] == given == [tf.float32] * len(given)


def test_a_read_comes_out_of_a_choice_of_several() -> None:
    weight = tf.Variable(2.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        index = tf.cast(tf.reduce_sum(x), tf.int32)
        return tf.switch_case(index, [lambda: x, lambda: x * weight, lambda: x + weight])

    graph = opened(step)
    (choice,) = functional(graph)
    assert choice.op == "StatelessCase"
    assert list(choice.bodies) == ["branch_0", "branch_1", "branch_2"]
    assert len(reads(graph)) == 1


def loop_that_writes(weight: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(3):
        x = x * weight
        weight.assign_add(tf.ones([3]))
    return x


def condition_that_writes(weight: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    if tf.reduce_sum(x) > 0:
        weight.assign(tf.reduce_sum(x, 0))
    return x * weight


def write_deep_inside(weight: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(2):
        for _ in tf.range(2):
            if tf.reduce_sum(x) > 0:
                weight.assign_add(tf.ones([3]))
    return x


def random_numbers(_: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(2):
        x = x + tf.random.normal([3])
    return x


def loop_that_gathers_and_writes(weight: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    for k in tf.range(2):
        x = x + tf.gather(weight, k)
        weight.assign(2.0 * weight)
    return x


@pytest.mark.parametrize(
    ("function", "op", "num_reads"),
    [
        (loop_that_writes, "While", 0),
        (condition_that_writes, "If", 1),
        (write_deep_inside, "While", 0),
        (random_numbers, "While", 0),
        (loop_that_gathers_and_writes, "While", 0),
    ],
)
def test_what_changes_state_stays_as_it_is(
    function: Callable[..., tf.Tensor], op: str, num_reads: int
) -> None:
    weight = tf.Variable([2.0, 3.0, 4.0])
    graph = opened(lambda x: function(weight, x))
    (node,) = functional(graph)
    assert (node.op, node.bodies, len(reads(graph))) == (op, {}, num_reads)
    assert node.is_stateful and node.has_side_effect


def test_a_loop_gathers_from_a_variable_that_is_read_before_it() -> None:
    table = tf.Variable(tf.ones([5, 3]))

    def step(x: tf.Tensor) -> tf.Tensor:
        for k in tf.range(2):
            x = x + tf.gather(table, k) + tf.gather_nd(table, [[k]])
        table.assign(table + 1.0)
        return x

    graph = opened(step)
    (loop,) = functional(graph)
    assert loop.op == "StatelessWhile"
    assert all(tensor.dtype != tf.resource for tensor in loop.inputs)
    gathers = [node for node in loop.bodies["body"] if "Gather" in node.op]
    assert [node.op for node in gathers] == ["GatherV2", "GatherNd"]
    (of_loop,) = [node for node in reads(graph) if node.outputs[0] in loop.inputs]
    assert of_loop.static_shapes == ((5, 3),)
    (write,) = [node for node in graph if node.op == "AssignVariableOp"]
    assert of_loop in write.after


def test_a_gather_comes_between_its_writes() -> None:
    table = tf.Variable(tf.ones([5, 3]))

    def step(x: tf.Tensor) -> tf.Tensor:
        table.assign(tf.zeros([5, 3]))
        row = tf.gather(table, [1])
        table.assign_add(tf.ones([5, 3]))
        return x + row

    graph = opened(step)
    (read,) = reads(graph)
    first, second = [node for node in graph if node.op.startswith("Assign")]
    assert first in read.after and read in second.after
    assert not any(before.op == "GatherV2" for before in second.after)


def test_the_owner_gathers_from_a_large_table() -> None:
    """Unless a loop would run on the owner for it."""
    table = tf.Variable(tf.zeros([LARGEST_TABLE // 4 // 3 + 1, 3]))

    def step(x: tf.Tensor) -> tf.Tensor:
        for k in tf.range(2):
            x = x + tf.gather(table, k)
        return x + tf.gather(table, [0])

    graph = opened(step)
    assert [node.op for node in graph if "Gather" in node.op] == ["ResourceGather"]
    assert [loop.op for loop in functional(graph)] == ["StatelessWhile"]


def test_rows_are_gathered_along_the_axis_behind_those_of_the_batch() -> None:
    table = tf.Variable(tf.reshape(tf.range(24.0), [2, 4, 3]))
    indices = [[3, 0], [1, 1]]

    def step(x: tf.Tensor) -> tf.Tensor:
        return x + tf.raw_ops.ResourceGather(
            resource=table.handle, indices=indices, batch_dims=1, dtype=tf.float32
        )

    batch = np.ones([2, 2, 3], "float32")
    np.testing.assert_array_equal(evener.distribute(step)(batch), step(batch))
    assert "GatherV2" in {node.op for node in opened(step, tf.TensorSpec([None, 2, 3]))}


def test_what_a_loop_hands_through_is_what_it_was_given() -> None:
    weight = tf.Variable(2.0)

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            for _ in tf.range(3):
                x = x * weight
        return tape.gradient(x, weight)

    graph = opened(step)
    loops = functional(graph)
    assert len(loops) == 2
    produced = {tensor for loop in loops for tensor in loop.outputs}
    handles = {t for node in graph for t in node.inputs if t.dtype == tf.resource}
    assert not handles & produced


def test_a_read_that_came_out_waits_for_an_earlier_write_and_a_later_one_for_it() -> None:
    weight = tf.Variable(2.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        weight.assign(5.0)
        for _ in tf.range(3):
            x = x * weight
        weight.assign_add(1.0)
        return x

    graph = opened(step)
    (read,) = reads(graph)
    first, second = [node for node in graph if node.op.startswith("Assign")]
    assert first in read.after and read in second.after
