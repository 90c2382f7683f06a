"""Nodes that run together as tasks, their order and devices, and tasks that become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import given

from evener.partition.emit import PartitionedStep
from evener.partition.tasks import HOST, PARTS, PARTS_WITH_SAMPLES, Place, merge_parts
from unit.partition.steps import (
    caller,
    earlier_tasks,
    node_of,
    ops_in,
    partitioned,
    run,
    tasks_of,
)


def training_step() -> tuple[Callable[..., Any], list[tf.Variable]]:
    variables = []
    for device in ("/CPU:0", "/CPU:1"):
        with tf.device(device):
            variables.append(tf.Variable(tf.fill([3, 3], 0.5)))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ variables[0]) @ variables[1]))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step, variables


def check_order(step: PartitionedStep) -> None:
    """No circles, nothing twice, and every task after what it needs."""
    tasks = step.partition.tasks
    done: set[int] = set()
    for task in tasks:
        assert earlier_tasks(step, task) <= done, f"{task.where} {task.level}: {ops_in(task)}"
        done.add(id(task))
    assert [task.level for task in tasks] == sorted(task.level for task in tasks)
    assert len({(task.place, task.level) for task in tasks}) == len(tasks)
    nodes = [node for task in tasks for node in task.nodes]
    assert len(set(nodes)) == len(nodes) == len(step.partition.task_of)
    for task in tasks:
        places = {node: place for place, node in enumerate(task.nodes)}
        for node, place in places.items():
            before = [t.node for t in node.inputs] + list(node.after)
            assert all(places[earlier] < place for earlier in before if earlier in places)


def test_a_training_step_is_reads_parts_and_updates() -> None:
    function, _ = training_step()
    step = partitioned(function, [None, 3])
    check_order(step)
    reads, updates = tasks_of(step, "ReadVariableOp"), tasks_of(step, "AssignSubVariableOp")
    assert [task.where for task in reads] == ["/device:CPU:0", "/device:CPU:1"]
    assert {task.where for task in updates} == {"/device:CPU:0", "/device:CPU:1"}
    assert [task.level for task in reads] == [0, 0]
    (products,) = tasks_of(step, "MatMul")
    assert products.is_parts and products.level == 1
    assert all(task.level > products.level for task in updates)
    assert len(step.partition.tasks) <= 7


@pytest.mark.parametrize("jit_compile", [False, True])
def test_parts_that_wait_for_different_values_are_one_task(jit_compile: bool) -> None:
    """The second layer waits for a weight that is computed once, the first one does not."""
    first, second = tf.Variable(tf.ones([3, 3])), tf.Variable(tf.ones([3, 3]))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            hidden = tf.tanh(x @ first)
            loss = tf.reduce_mean(hidden @ (second / tf.norm(second)))
        gradients = tape.gradient(loss, [first, second])
        for variable, gradient in zip((first, second), gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    made = partitioned(tf.function(step, jit_compile=jit_compile), [None, 3])
    check_order(made)
    (products,) = tasks_of(made, "MatMul")
    assert ops_in(products).count("MatMul") == 5


def test_parts_on_both_sides_of_a_sum_are_two_tasks() -> None:
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        hidden = tf.tanh(x)
        return tf.exp(hidden - tf.reduce_mean(hidden)), tf.sin(hidden)

    made = partitioned(step, [None, 3])
    check_order(made)
    assert [set(ops_in(task)) - {"Identity"} for task in made.partition.tasks] == [
        {"Tanh", "Mean", "Sin"},
        {"Sub", "Exp"},
    ]


def test_what_is_fetched_is_what_others_need() -> None:
    function, _ = training_step()
    step = partitioned(function, [None, 3])
    task_of = step.partition.task_of
    for task in step.partition.tasks:
        assert len(set(task.fetches)) == len(task.fetches)
        for tensor in task.fetches:
            users = {id(task_of[node]) for node in task_of if tensor in node.inputs} - {id(task)}
            assert users or tensor in step.partition.graph.outputs
    (products,) = tasks_of(step, "MatMul")
    assert {tuple(t.shape) for t in products.fetches} == {(), (3, 3)}


def test_what_nobody_needs_or_only_for_its_size_is_left_out() -> None:
    step = partitioned(lambda x: (tf.zeros([tf.shape(tf.exp(x))[0] * 2]), tf.cos(x))[0], [None, 3])
    assert not any(tasks_of(step, op) for op in ("Exp", "Shape", "Cos"))


def test_what_is_gathered_ends_a_task_and_begins_another() -> None:
    step = partitioned(lambda x: tf.exp(tf.sort(tf.sin(x), axis=0)[0] * tf.cos(x)), [None, 3])
    check_order(step)
    (before,), (once,), (after,) = (tasks_of(step, op) for op in ("Sin", "TopKV2", "Exp"))
    assert (before.is_parts, once.is_parts, after.is_parts) == (True, False, True)
    assert before.level < once.level < after.level
    assert tasks_of(step, "Cos")[0].is_parts


def test_sums_of_sums_need_no_more_levels() -> None:
    step = partitioned(lambda x: tf.reduce_sum(x) + tf.reduce_sum(tf.exp(x)), [None, 3])
    check_order(step)
    assert len(step.partition.tasks) == 1


def test_a_write_waits_for_reads_before_it_and_reads_after_it_for_the_write() -> None:
    variable = tf.Variable(2.0)

    def step(x: tf.Tensor) -> Any:
        first = tf.reduce_sum(x * variable)
        variable.assign(5.0)
        second = tf.reduce_sum(x * variable)
        variable.assign_add(tf.reduce_sum(x))
        return first, second, variable.read_value()

    made = partitioned(step, [None, 3])
    check_order(made)
    call = caller(made, [variable.handle])
    for _ in range(200):
        variable.assign(2.0)
        first, second, last = call([2, 1, 1], [tf.ones([4, 3])])
        assert (float(first), float(second), float(last)) == (24.0, 60.0, 17.0)
    writes = [node_of(made, op) for op in ("AssignVariableOp", "AssignAddVariableOp")]
    levels = [made.partition.task_of[node].level for node in writes]
    assert levels[0] < levels[1]


def test_equal_reads_are_one() -> None:
    variable = tf.Variable(2.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        return x * variable + variable.read_value() * tf.convert_to_tensor(variable)

    made = partitioned(step, [None, 3])
    assert sum(ops_in(task).count("ReadVariableOp") for task in made.partition.tasks) == 1


def test_reads_before_and_after_a_write_are_two() -> None:
    variable = tf.Variable(2.0)

    def step(x: tf.Tensor) -> Any:
        before = variable.read_value()
        variable.assign(3.0)
        return before, variable.read_value(), x

    made = partitioned(step, [None, 3])
    results = run(made, [1, 1, 0], [tf.ones([2, 3])], [variable.handle])
    assert [float(result) for result in results[:2]] == [2.0, 3.0]


def test_a_write_waits_for_a_loop_that_reads() -> None:
    with tf.device("/CPU:0"):
        variable = tf.Variable(tf.ones([300, 300]))

    def step(x: tf.Tensor) -> Any:
        total = tf.zeros([300, 300])
        for _ in tf.range(3):
            total += variable
        variable.assign(tf.fill([300, 300], 5.0))
        return total, tf.reduce_sum(x)

    made = partitioned(step, [None, 3])
    read = node_of(made, "ReadVariableOp")
    write = node_of(made, "AssignVariableOp")
    task_of = made.partition.task_of
    assert read in write.after or task_of[read].level < task_of[write].level


def test_a_loop_that_gathers_waits_for_a_write() -> None:
    with tf.device("/CPU:0"):
        variable = tf.Variable(tf.ones([300, 300]))

    def step(x: tf.Tensor) -> Any:
        variable.assign(tf.fill([300, 300], 2.0))
        total = tf.zeros([10, 300])
        for _ in tf.range(3):
            total += tf.gather(variable, tf.range(10))
        return total, tf.reduce_sum(x)

    made = partitioned(step, [None, 3])
    call, wrong = caller(made, [variable.handle]), 0
    for _ in range(10):
        variable.assign(tf.ones([300, 300]))
        total, _ = call([1, 1, 0], [tf.ones([2, 3])])
        wrong += float(total[0, 0]) != 6.0
    assert wrong == 0


def test_side_effects_run_though_nobody_uses_them() -> None:
    counter = tf.Variable(0.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        counter.assign_add(tf.reduce_sum(x))
        tf.debugging.assert_less(tf.reduce_max(x), 10.0)
        return x + 1.0

    made = partitioned(step, [None, 3])
    check_order(made)
    run(made, [1, 2, 1], [tf.ones([4, 3])], [counter.handle])
    assert float(counter) == 12.0
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(made, [1, 2, 1], [tf.fill([4, 3], 11.0)], [counter.handle])


def test_a_symbol_is_computed_before_what_needs_it() -> None:
    """The number of different values is known only when the step runs."""

    def step(n: tf.Tensor) -> Any:
        values, _ = tf.unique(n)
        return tf.zeros([tf.shape(values)[0], tf.shape(n)[0]]) + 1.0

    made = partitioned(step, [None], dtype=tf.int32)
    check_order(made)
    (result,) = run(made, [2, 1, 2], [tf.constant([3, 3, 4, 5, 3])], [])
    assert result.shape == [3, 5]


def home(step: PartitionedStep, op: str) -> str:
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


def test_everything_else_is_where_its_inputs_are_or_on_the_first_device() -> None:
    first, second = variable_on("/CPU:1", [3]), variable_on("/CPU:2", [3])

    def step(x: tf.Tensor) -> Any:
        first.assign_sub(tf.sin(tf.reduce_sum(x, 0)))
        second.assign_sub(tf.cos(tf.reduce_sum(x, 0)))
        with tf.device("/CPU:1"):
            pinned = tf.cumsum(tf.sort(x, axis=0)[0])
        return pinned, tf.random.normal([3])

    made = partitioned(step, [None, 3])
    homes = {"Sin": 1, "Cos": 2, "TopKV2": 1, "RandomStandardNormal": 0}
    assert {op: home(made, op) for op in homes} == {
        op: f"/device:CPU:{index}" for op, index in homes.items()
    }
    assert home(partitioned(lambda x: tf.sort(x, axis=0), [None, 3]), "TopKV2") == "/device:CPU:0"


def test_strings_are_on_the_host() -> None:
    weight = variable_on("/CPU:1", [])
    made = partitioned(lambda x: tf.strings.as_string(tf.reduce_sum(x) * weight), [None, 3])
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


PLACES = (Place(PARTS), Place(PARTS_WITH_SAMPLES), Place("cpu:0"))


def least_levels(dependencies: dict[Any, list[tuple[Any, bool]]]) -> dict[Any, int]:
    levels: dict[Any, int] = {}
    for node, needs in dependencies.items():
        levels[node] = max((levels[need] + (not same) for need, same in needs), default=0)
    return levels


def merged(
    places: dict[Any, Place], dependencies: dict[Any, list[tuple[Any, bool]]], *alone: Any
) -> dict[Any, int]:
    levels = least_levels(dependencies)
    merge_parts(levels, dependencies, places, alone)
    return levels


def num_tasks(places: dict[Any, Place], levels: dict[Any, int]) -> int:
    return len({(places[node], level) for node, level in levels.items()})


def test_tasks_that_wait_for_each_other_in_turn_are_not_moved_for_ever() -> None:
    first, second, _ = PLACES
    places = {"a": first, "b": second, "c": second, "d": first}
    dependencies = {"a": [], "b": [("a", False)], "c": [], "d": [("c", False)]}
    levels = merged(places, dependencies)
    # One of the two places has one task, between those of the other place.
    assert num_tasks(places, levels) == 3
    assert levels["b"] > levels["a"] and levels["d"] > levels["c"]


def test_a_task_alone_stays_as_it_is() -> None:
    parts, _, device = PLACES
    places = {"a": parts, "weight": device, "b": parts}
    dependencies = {"a": [], "weight": [], "b": [("a", True), ("weight", False)]}
    assert merged(places, dependencies) == {"a": 1, "weight": 0, "b": 1}
    assert merged(places, dependencies, "a") == {"a": 0, "weight": 0, "b": 1}


@given(st.data())
def test_every_node_stays_behind_what_it_needs(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 14))
    places: dict[Any, Place] = {k: data.draw(st.sampled_from(PLACES)) for k in range(count)}
    dependencies: dict[Any, list[tuple[Any, bool]]] = {}
    for node in range(count):
        needs = data.draw(st.sets(st.integers(0, node - 1), max_size=3)) if node else set()
        dependencies[node] = [
            (need, places[need] == places[node] and data.draw(st.booleans())) for need in needs
        ]
    levels = merged(places, dependencies)
    for node, needs in dependencies.items():
        for need, is_same in needs:
            assert levels[node] >= levels[need] + (not is_same)
    assert num_tasks(places, levels) <= num_tasks(places, least_levels(dependencies))
