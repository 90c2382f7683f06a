"""In which stage and in which pass the nodes of a step are computed."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from evener.errors import EngineError
from evener.graph.nodes import Node
from evener.partition.layout import Layout
from evener.partition.stage import BACKWARD, FORWARD, Scopes
from evener.plan import Plan
from unit.partition.steps import NAMES, WIDTH, Step, dense, is_gradient, stack, step_of

TWO = Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=2)
PATHS = {"m": "m", "m/block_1": "m/block", "m/block_1/dense": "m/block/dense", "x": "x"}


def node(name: str) -> Node:
    return Node(name, "Identity", [], {}, dtypes=[tf.float32], device="")


def stages_of(step: Step, layer: str, *, forward: bool = False) -> set[tuple[int, ...]]:
    """Return the stages of all nodes of a layer, and of its gradients, that parts compute."""
    found = [node for node in step.nodes(layer) if not (forward and is_gradient(node))]
    places = {step.partition.task_of[node].place for node in found}
    return {place.stages for place in places if place.is_parts}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("m/block_1/dense/MatMul", "m/block/dense"),
        ("m/block_1/add", "m/block"),
        ("gradient_tape/m/block_1/dense/MatMul/MatMul_1", "m/block/dense"),
        ("gradients/m/block_1/add_grad/Sum", "m/block"),
        ("while/body/gradient_tape/m/add/Sum", "m"),
        ("m", ""),
        ("y/z", ""),
        ("y/m/add", ""),
    ],
)
def test_a_node_is_in_the_innermost_layer_around_it(name: str, path: str) -> None:
    assert Scopes(PATHS).path(node(name)) == path


@pytest.mark.parametrize(
    ("patterns", "region"),
    [(["block"], "m/block_1"), (["dense"], "m/block_1/dense"), (["*"], "m"), (["other"], "")],
)
def test_a_region_is_the_outermost_layer_that_matches(patterns: list[str], region: str) -> None:
    assert Scopes(PATHS).region(node("m/block_1/dense/MatMul"), patterns) == region


@pytest.fixture(scope="module")
def two() -> Step:
    """A training step of two stages."""
    return step_of(TWO)


def test_nodes_and_gradients_of_a_layer_are_in_its_stage_and_in_their_passes(two: Step) -> None:
    for name in NAMES:
        of_parts = [node for node in two.nodes(name) if two.partition.task_of[node].is_parts]
        assert {is_gradient(node) for node in of_parts} == {False, True}
        for node in of_parts:
            expected = BACKWARD if is_gradient(node) else FORWARD
            assert two.partition.passes[node] == expected
        assert stages_of(two, name) == {(int(name.startswith("b")),)}


def test_the_loss_is_in_the_stage_of_the_outputs(two: Step) -> None:
    """Though it is returned after the updates."""
    (square,) = [n for n in two.partition.task_of if n.op == "Square"]
    assert two.partition.task_of[square].place.stages == (1,)
    assert two.partition.task_of[square] is two.task("b1", "MatMul")


def weighed(model: keras.Model) -> Any:
    """Return a training step with targets made of samples, and a loss of a weight for each."""
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    scale = tf.Variable(2.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        half = x * 0.5
        targets = tf.abs(half)
        with tf.GradientTape() as tape:
            errors = keras.losses.mean_squared_error(targets, model(half, training=True))
            loss = tf.reduce_sum(errors) / (scale * tf.cast(tf.size(errors), errors.dtype))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step


def test_what_is_made_of_samples_alone_is_where_it_is_read(two: Step) -> None:
    step = step_of(TWO, function=weighed(stack()))
    (targets,) = [n for n in step.partition.task_of if n.op == "Abs"]
    assert step.partition.task_of[targets].place.stages == (1,)
    # What the first stage reads stays there, though the last one reads it as well.
    (half,) = [n for n in step.partition.task_of if targets.inputs[0].node is n]
    assert half.op == "Mul"
    assert step.partition.task_of[half].place.stages == (0,)
    assert two.task("a0", "MatMul").place.stages == (0,)


@pytest.mark.parametrize(
    "plan", [TWO, Plan.data_parallel(("cpu:1",), num_micro_batches=2)], ids=["stages", "one"]
)
def test_both_passes_of_the_last_stage_are_one_task(plan: Plan) -> None:
    """Though the backward pass waits for a number that another device computes."""
    step = step_of(plan, function=weighed(stack()))
    task = step.task("b0", "MatMul")
    assert task is step.task("b0", "MatMul", backward=True)
    # A loss that is returned after the updates does not keep what it is computed from.
    (square,) = [n for n in step.partition.task_of if n.op == "Square"]
    assert step.partition.task_of[square] is task
    assert len(step.parts) == 2 * len(plan.replicas[0].stages) - 1


def test_rows_of_a_table_that_both_passes_need_are_found_in_the_passes() -> None:
    model, table = stack(), tf.Variable(tf.ones([4, WIDTH]))

    def step(x: tf.Tensor) -> tf.Tensor:
        rows = tf.cast(x[:, 0], tf.int32) % 4
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.square(model(tf.gather(table.read_value(), rows), training=True))
            )
        gradient = tf.convert_to_tensor(tape.gradient(loss, table))
        table.assign_sub(0.1 * gradient)
        return loss

    made = step_of(TWO, function=step)
    found = [task.place.stages for task in made.parts if len(task.nodes) > 1]
    assert found == [(0,), (1,), (0,)]


class Twice(keras.Model):
    """Calls one layer in both stages."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.first, self.last = dense("shared"), dense("first"), dense("last")

    def call(self, x: Any) -> Any:
        """Call the shared layer before and after the others."""
        return self.last(self.shared(self.first(self.shared(x))))


def called_twice() -> keras.Model:
    model = Twice()
    model(tf.zeros([1, WIDTH]))
    return model


def nested() -> keras.Model:
    blocks = [keras.Sequential([dense("inner"), dense("outer")], name=name) for name in "xy"]
    return keras.Sequential([keras.Input((WIDTH,)), *blocks])


def with_activation() -> keras.Model:
    return keras.Sequential(
        [keras.Input((8,)), dense("a0"), layers.Activation("relu", name="between"), dense("b0")]
    )


@pytest.mark.parametrize(
    ("plan", "model", "forward", "expected"),
    [
        # A layer in no stage is where its inputs are.
        ({"cpu:1": "a0", "cpu:2": "b0"}, stack, True, {"a0": 0, "a1": 0, "b0": 1, "b1": 1}),
        ({"cpu:1": "a0", "cpu:2": "b0"}, with_activation, True, {"between": 0}),
        # A layer of an earlier stage may be behind a later one.
        (
            {"cpu:1": ["a0", "b0"], "cpu:2": ["a1", "b1"]},
            stack,
            False,
            {"a0": 0, "a1": 1, "b0": 0, "b1": 1},
        ),
        (
            {"cpu:1": ["shared"], "cpu:2": ["first", "last"]},
            called_twice,
            False,
            {"shared": 0, "first": 1, "last": 1},
        ),
        (
            {"cpu:1": ["x/inner"], "cpu:2": ["x/outer", "y"]},
            nested,
            False,
            {"x/inner": 0, "x/outer": 1, "y/inner": 1},
        ),
    ],
    ids=["no_stage", "activation", "forth_and_back", "called_twice", "nested"],
)
def test_stages_of_layers(plan: Any, model: Any, forward: bool, expected: dict[str, int]) -> None:
    step = step_of(Plan.pipeline(plan), model())
    found = {name: stages_of(step, name, forward=forward) for name in expected}
    assert found == {name: {(stage,)} for name, stage in expected.items()}


def test_every_replica_has_stages_of_its_own() -> None:
    reverse = Plan.pipeline({"cpu:2": "a0", "cpu:1": ["a1", "b*"]})
    replicas = (*TWO.replicas, *reverse.replicas)
    step = step_of(Plan(devices=TWO.devices, replicas=replicas, owners="sharded"))
    found = {name: stages_of(step, name) for name in ("a0", "a1", "b1")}
    assert found == {"a0": {(0, 0)}, "a1": {(0, 1)}, "b1": {(1, 1)}}


def test_a_step_without_gradients_is_all_forward() -> None:
    step = step_of(TWO, function=stack())
    assert set(step.partition.passes.values()) == {FORWARD}


CALLED = {"m": "m", "m/dense_1": "m/dense_1", "m/dense_2": "m/dense_2", "m/drop": "m/drop"}
WEIGHTS_OF = ("m/dense_1/kernel", "m/dense_2/kernel", "m/dense_2/bias")


@pytest.mark.parametrize(
    ("stages", "recompute", "text"),
    [
        ({"cpu:1": ["dense_1"], "cpu:2": ["dense_3"]}, (), r"(?s)'dense_3'.*'m/dense_2'"),
        ({"cpu:1": "dense_*", "cpu:2": "drop"}, ["dense"], r"(?s)recompute.*'dense'"),
    ],
    ids=["stages", "recompute"],
)
def test_a_pattern_that_names_no_layer_is_refused(stages: Any, recompute: Any, text: str) -> None:
    layout = Layout.of(Plan.pipeline(stages, recompute=recompute))
    with pytest.raises(EngineError, match=text) as caught:
        Scopes(CALLED).check(layout, WEIGHTS_OF)
    assert caught.value.code == "ENG-042"


@pytest.mark.parametrize(
    ("first", "last", "variables"),
    [
        (["dense_*"], ["drop"], WEIGHTS_OF),
        # Layers without weights need no stage.
        (["dense_1"], ["dense_2"], WEIGHTS_OF),
        # All layers with weights have a stage: the other pattern is for another program.
        (["dense_*"], ["no_such_layer"], WEIGHTS_OF),
        # A layer that another step calls.
        (["dense_*"], ["head"], (*WEIGHTS_OF, "m/head/kernel")),
    ],
)
def test_patterns_that_are_in_order(
    first: list[str], last: list[str], variables: tuple[str, ...]
) -> None:
    layout = Layout.of(Plan.pipeline({"cpu:1": first, "cpu:2": last}))
    Scopes(CALLED).check(layout, variables)
