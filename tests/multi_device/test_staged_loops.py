"""Stages in custom loops, besides being exact: the devices that run them, refused plans."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener
from evener import EngineError, EvenerWarning, Plan, Strategy

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


def training(plan: Plan, build: Callable[[], keras.Model] = stack) -> tuple[Strategy, Any]:
    """Return a strategy, and what one of its loops gives to ``run``."""
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

    return strategy, step


def traced(plan: Plan, build: Callable[[], keras.Model] = stack) -> Any:
    """Return a training step of a custom loop as a traced function."""
    strategy, step = training(plan, build)

    @tf.function
    def train(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)

    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(X))
    concrete = train.get_concrete_function(batch)
    concrete.kept = train, strategy
    return concrete


def test_all_work_of_a_layer_is_on_its_stage() -> None:
    """Forward and backward in calls on the stage's device; weights are updated where they are."""
    strategy, step = training(PLAN)
    train = tf.function(step)
    strategy.run(train, args=(tf.constant(X),))
    (partitioned,) = strategy._step_of(train).partitioned_steps
    layer_of = re.compile(r"(?:^|/)(a0|a1|b0|b1)(?:_\d+)?/")
    seen: dict[str, set[str]] = {name: set() for name in NAMES}
    updates: list[str] = []
    wrong = []
    layout = partitioned.partition.layout
    for node, task in partitioned.partition.task_of.items():
        device = layout.device(0, task.place.stages) if task.is_parts else task.where
        if node.op == "AssignSubVariableOp":
            updates.append(device[-5:])
        layer = layer_of.search(node.name)
        if layer is not None:
            seen[layer[1]].add("gradient" if "gradient_tape" in node.name else "forward")
            if device[-5:] != HOMES[layer[1]]:
                wrong.append((node.name, node.op, device))
    assert not wrong
    assert all(kinds == {"forward", "gradient"} for kinds in seen.values())
    assert sorted(updates) == ["CPU:1"] * 4 + ["CPU:2"] * 4


def test_variables_made_in_the_first_call_go_where_the_plan_says() -> None:
    def build() -> keras.Model:
        return keras.Sequential([layers.Dense(8, name=name) for name in NAMES])

    plan = Plan.pipeline(
        {"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=2, owners={"*/a1/*": "cpu:2"}
    )
    strategy = Strategy(plan)
    with strategy.scope():
        model = build()
    for batch in tf.data.Dataset.from_tensors(X):
        tf.function(lambda x: strategy.run(model, args=(x,)))(batch)
    homes = {v.path.split("/")[1]: v.value.device[-5:] for v in model.trainable_variables}
    assert homes == {**HOMES, "a1": "CPU:2"}


def refused(code: str, plan: Plan, build: Callable[[], keras.Model] = stack) -> EngineError:
    """Return the error that a loop's first step ends with."""
    with pytest.raises(EngineError) as caught:
        traced(plan, build)
    assert caught.value.code == code
    return caught.value


def test_a_pattern_that_names_no_layer() -> None:
    error = refused("ENG-042", Plan.pipeline({"cpu:1": "a*", "cpu:2": ["b0", "c1"]}))
    assert "'c1'" in str(error) and "b1" in str(error)


def test_a_layer_in_two_stages() -> None:
    error = refused("ENG-041", Plan.pipeline({"cpu:1": "a*", "cpu:2": ["b*", "a1"]}))
    assert "'a1'" in error.what


def test_a_layer_that_is_pinned_elsewhere_computes_the_same() -> None:
    """The pin of a layer says where its weights are; its stage says where it is computed."""

    def build() -> keras.Model:
        model = stack()
        evener.pin("cpu:3")(model.get_layer("b0"))
        return model

    results = []
    for made in (stack, build):
        keras.utils.set_random_seed(1)
        results.append(float(traced(PLAN, made)(tf.constant(X))))
    assert results[0] == pytest.approx(results[1], rel=1e-5)


@pytest.mark.filterwarnings("default")
def test_an_eager_run_is_told_of_and_computes_on_one_device() -> None:
    strategy = Strategy(PLAN)
    with strategy.scope():
        model = stack()
    seen: list[str] = []

    def look(x: tf.Tensor) -> tf.Tensor:
        seen.append(tf.sin(x).device[-5:])
        return model(x)

    with pytest.warns(EvenerWarning, match="ENG-086") as told:
        for _ in range(2):
            result = strategy.run(look, args=(tf.constant(X),))
    assert len([warning for warning in told if "ENG-086" in str(warning.message)]) == 1
    assert seen == ["CPU:1"] * 2
    np.testing.assert_allclose(result, model(X), rtol=1e-6)
