"""Tracing a forward pass, giving its operations to stages, and cutting it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener.engine.staged.stages.assignment import Assignment, assign, stage_of_path
from evener.engine.staged.stages.cut import CutFunction, operations_between
from evener.engine.staged.stages.functions import Cutter
from evener.engine.staged.stages.trace import Trace, layer_paths, trace

SPEC: Any = tf.TensorSpec([None, 3])


def tower() -> keras.Model:
    """Three layers, the first shared, with a skip from the first to the last."""
    x = keras.Input((3,))
    shared = layers.Dense(3, activation="tanh", name="shared")
    first = shared(x)
    middle = layers.Dense(3, name="middle")(first)
    last = layers.Add(name="last")([first, shared(middle)])
    return keras.Model(x, last)


def traced(model: keras.Model) -> Trace:
    """Trace the model as a function of its weights and its input."""

    def function(weights: Any, x: Any) -> Any:
        mapping = zip(model.trainable_variables, weights, strict=True)
        with keras.StatelessScope(list(mapping)):
            return model(x)

    weights: Any = [tf.TensorSpec(v.shape, v.dtype) for v in model.trainable_variables]
    return trace(model, function, [weights, SPEC])


def stages_by_type(trace: Trace, assignment: Assignment, kind: str) -> list[int | None]:
    """Return the stages of all operations of one type, in the order of their making."""
    operations = trace.graph.get_operations()
    return [assignment.stages[op] for op in operations if op.type == kind]


def test_calls_are_recorded_with_their_path() -> None:
    inner = keras.Sequential([layers.Dense(2, name="deep")], name="block")
    model = keras.Sequential([keras.Input((3,)), inner, layers.Dense(1, name="head")])
    calls = traced(model).calls
    assert [call.path for call in calls] == ["block", "block/deep", "head"]
    assert [call.outer for call in calls] == [None, 0, None]
    assert layer_paths(model)[id(inner.layers[0])] == "block/deep"


def test_a_layer_in_a_loop_is_in_another_graph() -> None:
    model = keras.Sequential([keras.Input((4, 3)), layers.LSTM(2, name="memory")])

    def function(x: Any) -> Any:
        return model(x)

    spec: Any = tf.TensorSpec([None, 4, 3])
    calls = {call.path: call for call in trace(model, function, [spec]).calls}
    assert not calls["memory"].inner_graph
    assert calls["memory/lstm_cell"].inner_graph


def test_what_comes_after_belongs_to_the_latest_stage_before_it() -> None:
    made = traced(tower())
    assignment = assign(made, (("shared",), ("middle", "last")), ())
    # The second call of the shared layer is in the stage that asks for it.
    assert stages_by_type(made, assignment, "MatMul") == [0, 1, 1]
    assert stages_by_type(made, assignment, "Tanh") == [0, 1]


def test_one_pattern_for_all_puts_all_into_one_stage() -> None:
    made = traced(tower())
    assignment = assign(made, (("*",),), ())
    assert stages_by_type(made, assignment, "MatMul") == [0, 0, 0]


@pytest.mark.parametrize(
    ("path", "stage"), [("a", 0), ("a/b", 0), ("c/a", None), ("c/d", 1), ("d", None)]
)
def test_stages_by_path(path: str, stage: int | None) -> None:
    assert stage_of_path(path, (("a*",), ("c/d",))) == stage


def test_stages_computed_apart_give_what_the_whole_gives() -> None:
    model = tower()
    made = traced(model)
    assignment = assign(made, (("shared",), ("middle", "last")), ())
    cutter = Cutter(made, assignment, num_weights=4, num_state=0, jit_compile=False)
    first, second = cutter.with_backward([made.outputs], accumulate=False, weights_later=False)
    weights = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
    x = tf.constant(np.random.default_rng(0).normal(size=(5, 3)).astype("float32"))
    known = {id(t): value for t, value in zip(made.inputs, [*weights, x], strict=True)}

    def run(function: CutFunction) -> None:
        results = function([known[id(t)] for t in function.feeds])
        known.update(zip(map(id, function.fetches), results, strict=True))

    run(first.forward)
    run(second.forward)
    with tf.GradientTape() as tape:
        tape.watch([v.value for v in model.trainable_variables])
        expected = model(x)
    np.testing.assert_allclose(known[id(made.outputs)], expected, atol=1e-6)
    assert first.gradient and second.gradient and first.backward and second.backward
    for stage, seed in ((second, {id(made.outputs): tf.ones_like(expected)}), (first, {})):
        for tensor, place in stage.gradient.begins:
            parts = [known[key] for key in known if key == ("d", id(tensor))]
            known[id(place)] = seed.get(id(tensor), parts[0] if parts else None)
        run(stage.backward)
        for tensor, gradient in stage.gradient.inputs:
            known["d", id(tensor)] = known[id(gradient)]  # type: ignore[index]
    wanted = tape.gradient(expected, [v.value for v in model.trainable_variables])
    found = [0.0] * 4
    for stage in (first, second):
        for position, gradient in stage.gradient.weights:
            found[position] = found[position] + known[id(gradient)]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_what_is_computed_again_is_not_kept() -> None:
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(30, activation="gelu", name="wide"), layers.Dense(1)]
    )
    sizes = []
    for recompute in ((), ("wide",)):
        made = traced(model)
        assignment = assign(made, (("*",),), recompute)
        cutter = Cutter(made, assignment, num_weights=4, num_state=0, jit_compile=False)
        (stage,) = cutter.with_backward([made.outputs], accumulate=False, weights_later=False)
        sizes.append(sum(int(t.shape[-1] or 0) == 30 for t in stage.kept))
    assert sizes[0] > 1
    assert sizes[1] == 1  # the layer's result, which the next one needs
    assert stage.backward is not None
    again = [
        op
        for op in stage.backward.graph.get_operations()
        if op.type == "MatMul" and "/wide" in op.name and "_grad/" not in op.name
    ]
    # Not before the gradient of the result is there, or all layers would be in memory at once.
    assert len(again) == 1
    assert again[0].control_inputs


def test_a_cut_function_computes_its_part_alone() -> None:
    with tf.Graph().as_default() as graph:
        a = tf.compat.v1.placeholder(tf.float32, [], name="a")
        b = a * 2.0
        c = b + 1.0
        d = c * 3.0
    operations, feeds = operations_between([d], lambda t: t is b)
    assert feeds == [b] or feeds[0] is b
    assert {op.type for op in operations} == {"Const", "AddV2", "Mul"}
    ordered = [op for op in graph.get_operations() if op in operations]
    function = CutFunction(ordered, [b], [c, d])
    assert [float(v) for v in function([tf.constant(5.0)])] == [6.0, 18.0]
    assert not any(op.type == "Placeholder" and op.name == "a"
                   for op in function.graph.get_operations())  # fmt: skip


def test_a_cut_function_is_kept_whole_where_it_is_called() -> None:
    with tf.Graph().as_default() as graph:
        a = tf.compat.v1.placeholder(tf.float32, [])
        b = tf.sin(a)
    function = CutFunction([op for op in graph.get_operations() if op is b.op], [a], [b])

    @tf.function
    def twice(x: Any) -> Any:
        return function([function([x])[0]])[0]

    concrete = twice.get_concrete_function(tf.TensorSpec([]))
    definitions = concrete.graph.as_graph_def().library.function
    called = [f for f in definitions if f.attr["_noinline"].b]
    assert len(called) == 1
    assert float(concrete(tf.constant(1.0))) == pytest.approx(np.sin(np.sin(1.0)))
