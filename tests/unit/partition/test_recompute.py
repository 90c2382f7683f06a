"""Recomputed activations have the same values, and are not kept."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener.partition.stage import BACKWARD, FORWARD
from evener.plan import Plan
from unit.partition.steps import Step, is_gradient, name_of, stack, step_of

X = np.random.default_rng(0).normal(size=(12, 8)).astype("float32")
STAGES = {"cpu:1": "a*", "cpu:2": "b*"}


class Block(layers.Layer):
    """Two products with an activation between them, and dropout."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.inner = layers.Dense(32, activation="tanh", name="inner")
        self.drop = layers.Dropout(0.5, seed=3, name="drop")
        self.outer = layers.Dense(8, name="outer")

    def call(self, x: Any) -> Any:
        """Call all."""
        return self.outer(self.drop(self.inner(x)))


def blocks() -> keras.Model:
    return keras.Sequential([keras.Input((8,)), Block("a0"), Block("b0")])


def plan(*recompute: str, **how: Any) -> Plan:
    return Plan.pipeline(STAGES, recompute=recompute, **{"num_micro_batches": 2, **how})


def copies(step: Step) -> list[Any]:
    return [node for node in step.partition.task_of if node.name.endswith("/recompute")]


def kept_for_backward(step: Step, layer: str) -> set[str]:
    """Return the operations of a layer in the forward pass whose results the backward pass uses."""
    task_of, inside = step.partition.task_of, set(step.nodes(layer))
    return {
        tensor.node.op
        for task in step.parts
        if task.place.role == BACKWARD
        for node in task.nodes
        for tensor in node.inputs
        if tensor.node in inside and task_of[tensor.node].place.role == FORWARD
    }


@functools.cache
def trained(schedule: str, *recompute: str) -> tuple[list[float], list[np.ndarray]]:
    """Return the losses of three steps, and the weights after them."""
    keras.utils.set_random_seed(1)
    model = stack()
    made = step_of(plan(*recompute, schedule=schedule), model)
    losses = [float(made.run([12], X)[0]) for _ in range(3)]
    return losses, model.get_weights()


@pytest.mark.parametrize("recompute", [("a*",), ("*",), ("b0", "a1")])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_values_are_equal(recompute: tuple[str, ...], schedule: str) -> None:
    kept, weights = trained(schedule)
    again, same = trained(schedule, *recompute)
    np.testing.assert_allclose(again, kept, rtol=1e-6)
    for wanted, got in zip(weights, same, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def step() -> Step:
    """A step that recomputes the first of two blocks."""
    return step_of(plan("a0"), blocks())


def test_what_is_inside_a_layer_is_not_kept(step: Step) -> None:
    """The backward pass fetches activations of the other layer, and of this one its result."""
    assert "Tanh" in kept_for_backward(step, "b0")
    assert kept_for_backward(step, "a0") == {"BiasAdd"}  # the input of b0


def test_copies_run_in_the_backward_pass_of_the_stage(step: Step) -> None:
    """Behind the gradient of what follows: when the pass comes to the layer, and not earlier."""
    found = copies(step)
    assert {"Tanh", "MatMul"} <= {node.op for node in found}
    # The last product of a layer is needed by the next one alone.
    assert [node.outputs[0].shape[1] for node in found if node.op == "MatMul"] == [32]
    assert {step.partition.passes[node] for node in found} == {BACKWARD}
    (task,) = {step.partition.task_of[node] for node in found}
    assert (task.place.stages, task.place.role) == ((0,), BACKWARD)
    given = {
        tensor.node
        for node in task.nodes
        for tensor in node.inputs
        if step.partition.task_of.get(tensor.node) not in (None, task)
    }
    assert any(is_gradient(node) and "/b0" in name_of(node) for node in given)


def test_gradients_read_the_copies_where_there_are_any(step: Step) -> None:
    for partitioned, read in ((step, [True]), (step_of(plan("b0"), blocks()), [False])):
        nodes = partitioned.nodes("inner", "TanhGrad")
        (product,) = (node for node in nodes if "/a0" in name_of(node))
        tanhs = [tensor.node.name for tensor in product.inputs if tensor.node.op == "Tanh"]
        assert [name.endswith("/recompute") for name in tanhs] == read
    assert not copies(step_of(plan(), blocks()))


def test_what_draws_numbers_is_not_run_twice() -> None:
    step = step_of(plan("*"), blocks())
    assert any(node.is_stateful and not is_gradient(node) for node in step.partition.task_of)
    assert not [node for node in copies(step) if node.is_stateful]


def test_a_replica_of_one_stage() -> None:
    """Both passes are calls of their own, so that nothing of the layers is kept in between."""
    plan = Plan.pipeline([("cpu:1", "*")], recompute=["*"], num_micro_batches=2)
    step = step_of(plan, blocks())
    assert {task.place.role for task in step.parts} == {FORWARD, BACKWARD}
    assert "Tanh" not in kept_for_backward(step, "a0")
    assert isinstance(step.run([12], X)[0], tf.Tensor)
