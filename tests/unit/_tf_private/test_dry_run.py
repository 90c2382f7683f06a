"""Functions that are placed and do not run."""

from __future__ import annotations

import pytest
import tensorflow as tf

from evener._tf_private.functions import (
    before_functions_run,
    definition_frames,
    eager_execute,
    function_graphs,
    placed_without_running,
)

pytestmark = pytest.mark.usefixtures("logical_cpus")


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
