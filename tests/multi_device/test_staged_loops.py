"""What stages in custom loops must do besides being exact: where and in which order they run."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener
from evener import EngineError, Plan, Strategy
from evener.plan import Task, schedule_for

X = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")
NAMES = ("a0", "a1", "b0", "b1")
HOMES = {name: f"CPU:{1 + name.startswith('b')}" for name in NAMES}
PLAN = Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=4, in_flight=2)


def stack(width: int = 8) -> keras.Model:
    """Return two layers for each of two stages; every operation tells its layer by its name."""
    x = first = keras.Input((8,))
    for name in NAMES:
        x = layers.Dense(width, activation="tanh", name=name)(x)
    return keras.Model(first, x)


def traced(plan: Plan, build: Callable[[], keras.Model] = stack) -> Any:
    """Return a training step of a custom loop as a traced function."""
    strategy = Strategy(plan)
    with strategy.scope():
        model, optimizer = build(), keras.optimizers.Adam()
        loss_of = keras.losses.MeanSquaredError()

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)

    dataset = tf.data.Dataset.from_tensors(X)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    concrete = train.get_concrete_function(batch)
    concrete.kept = train, strategy
    return concrete


@pytest.fixture(scope="module")
def graph() -> tf.Graph:
    return traced(PLAN).graph


def operation(graph: tf.Graph, piece: int, rest: str, *, backward: bool = False) -> Any:
    """Return the operation of a micro-batch with this name inside the model."""
    replica = f"replica_{piece}/" if piece else ""
    name = re.compile(rf"{'gradient_tape/' * backward}{replica}functional(_\d+)?/{rest}")
    (found,) = [op for op in graph.get_operations() if name.fullmatch(op.name)]
    return found


def product(graph: tf.Graph, piece: int, layer: str, *, backward: bool = False) -> Any:
    """Return the product of a layer for a micro-batch, or that for its weights' gradient."""
    if not backward:
        return operation(graph, piece, f"{layer}_1/MatMul")
    last = "MatMul" if layer == "a0" else "MatMul_1"
    return operation(graph, piece, f"{layer}_1/MatMul/{last}", backward=True)


def ancestors(op: tf.Operation) -> set[tf.Operation]:
    """Return all that has to run before an operation."""
    waiting, seen = [op], set()
    while waiting:
        one = waiting.pop()
        before = {*(tensor.op for tensor in one.inputs), *one.control_inputs} - seen
        seen |= before
        waiting.extend(before)
    return seen


def test_all_work_of_a_layer_is_on_its_stage(graph: tf.Graph) -> None:
    """Forward, backward, and what adds gradients up; weights are read where they are."""
    seen: dict[str, set[str]] = {name: set() for name in NAMES}
    wrong = []
    for op in graph.get_operations():
        layer = next((name for name in NAMES if f"/{name}_1/" in op.name), None)
        if layer is None or op.type in ("Const", "NoOp", "Placeholder", "ReadVariableOp"):
            continue
        seen[layer].add("gradient" if op.name.startswith("gradient_tape") else "forward")
        if op.device[-5:] != HOMES[layer]:
            wrong.append((op.name, op.type, op.device))
    assert not wrong
    assert set(map(frozenset, seen.values())) == {frozenset({"forward", "gradient"})}
    updates = [op for op in graph.get_operations() if op.type == "AssignSubVariableOp"]
    assert sorted(op.device[-5:] for op in updates) == ["CPU:1"] * 4 + ["CPU:2"] * 4


def products(graph: tf.Graph, task: Task) -> list[Any]:
    """Return the products of a task's two layers."""
    names = NAMES[2 * task.stage : 2 * task.stage + 2]
    backward = task.kind == "backward"
    return [product(graph, task.micro_batch, name, backward=backward) for name in names]


def test_tasks_on_a_device_follow_each_other(graph: tf.Graph) -> None:
    """Each waits for the tasks before it in the schedule, as far as they are of earlier pieces."""
    (replica,) = PLAN.replicas
    pairs = [
        (earlier, later)
        for order in schedule_for(replica).orders
        for earlier, later in itertools.combinations(order, 2)
        if earlier.micro_batch < later.micro_batch
    ]
    assert len(pairs) > 30
    for earlier, later in pairs:
        for op in products(graph, later):
            assert ancestors(op).issuperset(products(graph, earlier)), (str(earlier), str(later))


def test_a_micro_batch_waits_until_gradients_are_added_up(graph: tf.Graph) -> None:
    """So there are never more gradients in memory than micro-batches in flight."""
    third = ancestors(product(graph, 3, "a0"))
    gradients = [product(graph, piece, "a0", backward=True) for piece in (0, 1)]
    sums = [
        op for op in third if op.type == "AddV2" and {t.op for t in op.inputs} == set(gradients)
    ]
    assert len(sums) == 1


def test_no_more_waits_than_the_plan_asks_for() -> None:
    """With everything in flight, a forward pass waits for no backward pass."""
    replica = dataclasses.replace(PLAN.replicas[0], in_flight=4)
    graph = traced(dataclasses.replace(PLAN, replicas=(replica,))).graph
    first = ancestors(product(graph, 3, "a0"))
    assert not [op for op in first if op.name.startswith("gradient_tape")]


class Block(layers.Layer):
    """Two products with an activation between them."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.inner = layers.Dense(32, activation="tanh", name="inner")
        self.outer = layers.Dense(8, name="outer")

    def call(self, x: Any) -> Any:
        """Call both."""
        return self.outer(self.inner(x))


def blocks() -> keras.Model:
    """Return one block for each of two stages."""
    x = keras.Input((8,))
    return keras.Model(x, Block("b0")(Block("a0")(x)))


def test_the_inside_of_a_block_is_computed_again() -> None:
    plan = dataclasses.replace(PLAN, recompute=("a0",))
    graph = traced(plan, blocks).graph
    recomputed, whole = (operation(graph, 1, f"{name}_1/inner_1/Tanh") for name in ("a0", "b0"))

    def backward_users(op: tf.Operation) -> list[str]:
        users = [user.name for tensor in op.outputs for user in tensor.consumers()]
        return [name for name in users if name.startswith("gradient_tape")]

    assert backward_users(whole)
    assert not backward_users(recomputed)
    (again,) = [op for op in graph.get_operations() if op.name == f"{recomputed.name}_1"]
    assert backward_users(again)
    assert again.device[-5:] == "CPU:1"
    of_result = [op for op in ancestors(again) if "gradient_tape/replica_1" in op.name]
    assert any("b0_1" in op.name for op in of_result)


def test_variables_made_in_the_first_call_go_where_the_plan_says() -> None:
    def build() -> keras.Model:
        return keras.Sequential([layers.Dense(8, name=name) for name in NAMES])

    plan = Plan.pipeline(
        {"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=2, owners={"*/a1/*": "cpu:2"}
    )
    strategy = Strategy(plan)
    with strategy.scope():
        model = build()
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(X))
    for batch in dataset:
        tf.function(lambda x: strategy.run(model, args=(x,)))(batch)
    homes = {v.path.split("/")[1]: v.value.device[-5:] for v in model.trainable_variables}
    assert homes == {**HOMES, "a1": "CPU:2"}


def refused(code: str, plan: Plan, build: Callable[[], keras.Model] = stack) -> EngineError:
    """Return the error that a loop's first step ends with."""
    with pytest.raises(EngineError) as caught:
        traced(plan, build)
    assert caught.value.code == code
    return caught.value


def test_a_layer_in_no_stage() -> None:
    error = refused("ENG-040", Plan.pipeline({"cpu:1": "a*", "cpu:2": "b0"}))
    assert "'b1'" in error.what


def test_a_layer_in_two_stages() -> None:
    error = refused("ENG-041", Plan.pipeline({"cpu:1": "a*", "cpu:2": ["b*", "a1"]}))
    assert "'a1'" in error.what


def test_a_layer_that_is_pinned_elsewhere() -> None:
    def build() -> keras.Model:
        model = stack()
        evener.pin("cpu:3")(model.get_layer("b0"))
        return model

    error = refused("ENG-047", PLAN, build)
    assert "'b0'" in error.what
