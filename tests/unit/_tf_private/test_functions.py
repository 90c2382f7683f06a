"""Traced functions: their calls, their conversion by AutoGraph, and how they are placed."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from evener._tf_private.functions import (
    TRACED_FUNCTIONS,
    around_functions_run,
    autographed,
    before_functions_run,
    body_of,
    definition_frames,
    eager_execute,
    function_graphs,
    is_compiled,
    leave_to_autograph,
    placed_without_running,
    stack,
)

pytestmark = pytest.mark.usefixtures("logical_cpus")


def test_functions_run_inside_a_context(patches_undone: None) -> None:
    seen = []

    @contextlib.contextmanager
    def wrap(function):
        seen.append(f"begin {function.name.decode()}")
        yield
        seen.append("end")

    around_functions_run(wrap)
    inner = tf.function(lambda x: x + 1.0)
    outer = tf.function(lambda x: inner(x) * 2.0)
    assert float(outer(tf.constant(1.0))) == 4.0
    begin, end = seen
    assert begin.startswith("begin __inference_") and end == "end"


def test_functions_without_a_graph_are_left_out() -> None:
    """The loops of `tf.nn.ctc_loss` call such functions."""

    @tf.function
    def loss(logits: tf.Tensor) -> tf.Tensor:
        lengths = {"label_length": [2], "logit_length": [4]}
        return tf.nn.ctc_loss([[1, 2]], logits, blank_index=0, **lengths)

    concrete = loss.get_concrete_function(tf.zeros([4, 1, 3]))
    assert concrete.name.decode() in function_graphs(concrete)


@pytest.mark.parametrize("jit_compile", [True, None])
def test_the_body_of_what_xla_compiles_is_the_function_itself(jit_compile: bool | None) -> None:
    def body() -> tf.Tensor:
        return tf.constant(1.0)

    function = tf.function(body, jit_compile=jit_compile)
    assert is_compiled(function) == bool(jit_compile)
    assert body_of(function) is (function if jit_compile else body)
    assert not is_compiled(body) and body_of(body) is body
    assert any(file == __file__ for file, _ in stack())


def test_traced_functions_are_made_and_called_through_known_functions(patches_undone: None) -> None:
    seen: list[str] = []

    def replace(kind: str) -> Callable[..., Any]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def noted(*args: Any, **kwargs: Any) -> Any:
                seen.append(kind)
                return original(*args, **kwargs)

            leave_to_autograph(noted)
            return noted

        return wrap

    kinds = {"__init__": "made", "__call__": "called"}
    TRACED_FUNCTIONS.apply_by_name(
        lambda original, name: replace(kinds[name])(original) if name in kinds else original
    )
    inner = tf.function(lambda x: x + 1)
    assert seen == ["made"]
    outer = tf.function(lambda x: inner(x) if x > 0 else x)
    assert int(outer(tf.constant(1))) == 2
    assert seen == ["made", "made", "called", "called"]


def test_a_function_is_converted_where_the_code_around_it_is() -> None:
    def positive(x: tf.Tensor) -> tf.Tensor:
        if x > 0:
            return x
        return -x

    @tf.function
    def around(x: tf.Tensor) -> tf.Tensor:
        return autographed(positive)(x)

    assert float(around(tf.constant(-2.0))) == 2.0


def test_autograph_converts_what_a_function_left_to_it_calls() -> None:
    def choose(x: tf.Tensor) -> tf.Tensor:
        if x > 0:
            return x
        return -x

    def watched(fn: Callable[..., Any], x: tf.Tensor) -> Any:
        # Rewritten, it would be a copy without these lines.
        lines.append(sys._getframe().f_code.co_filename)
        return tf.__internal__.autograph.tf_convert(
            fn, tf.__internal__.autograph.control_status_ctx(), convert_by_default=False
        )(x)

    lines: list[str] = []
    leave_to_autograph(watched)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return watched(choose, x)

    assert int(step(tf.constant(-3))) == 3
    assert lines == [__file__]


def stopped(call) -> tuple:
    """The traced function that a call would run, and its inputs."""

    class Stop(Exception):
        pass

    def watch(function, inputs):
        raise Stop(function, inputs)

    with pytest.raises(Stop) as caught, before_functions_run(watch):
        call()
    return caught.value.args


def test_a_function_is_stopped_placed_and_read_without_running() -> None:
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def inner(x):
        with tf.device("/cpu:1"):
            return tf.sin(x)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = inner(x * variable)
        variable.assign_sub(tape.gradient(y, variable))
        return y + 0.0

    step(tf.ones([2]))
    before = variable.numpy()
    function, inputs = stopped(lambda: step(tf.ones([2])))
    for optimized in (True, False):
        placed = placed_without_running(function, inputs, optimized=optimized)
        nodes = {node.name: node for node in placed.post_optimization_graph.node}
        (sine,) = (node for node in nodes.values() if node.op == "Sin")
        assert sine.device.endswith("CPU:1")
        assert sine.experimental_debug_info.original_node_names == ["Sin"]
        sent = [n for part in placed.partition_graphs for n in part.node if n.op == "_Send"]
        assert sent
    assert variable.numpy().tolist() == before.tolist()
    graphs = function_graphs(function)
    (name,) = sine.experimental_debug_info.original_func_names
    frames = definition_frames(graphs[name].get_operation_by_name("Sin"))
    assert (__file__, inner.python_function.__code__.co_firstlineno + 3, "inner") in frames
    backward = [operation for graph in graphs.values() for operation in graph.get_operations()]
    (cosine,) = (operation for operation in backward if operation.type == "Cos")
    made_by = {frame[2] for frame in definition_frames(cosine)}
    assert made_by & {"imperative_grad", "_GradientsHelper"}


def test_a_function_that_runs_in_spite_of_a_wrong_input_is_told_of(monkeypatch) -> None:
    function, inputs = stopped(lambda: tf.function(lambda x: x + 1.0)(tf.ones([])))
    monkeypatch.setattr(eager_execute, "execute", lambda *rest: [])
    with pytest.raises(RuntimeError, match="no longer checks its inputs"):
        placed_without_running(function, inputs, optimized=True)
