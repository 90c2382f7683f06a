"""Functions inside a step are read in place, with the order of what changes state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from evener.graph.dims import BATCH
from evener.graph.nodes import Graph, Node, Tensor, constant_array
from evener.graph.trace import repack, trace_step

FLOATS = tf.TensorSpec([None, 3])


def graph_of(function: Callable[..., Any], *specs: tf.TensorSpec) -> Graph:
    return Graph(tf.function(function).get_concrete_function(*specs).graph)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if node.op not in ("Placeholder", "Const", "Identity")]


def named(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph if node.op == op]


def runs_after(last: Node, before: Node) -> bool:
    """Whether a node waits for another, by data or by control dependencies."""
    waiting, seen = [last], set()
    while waiting:
        node = waiting.pop()
        if node is before:
            return True
        if node not in seen:
            seen.add(node)
            waiting += [tensor.node for tensor in node.inputs]
            waiting += node.after
    return False


def source_of(tensor: Tensor) -> Tensor:
    return source_of(tensor.node.inputs[0]) if tensor.node.op == "Identity" else tensor


def is_in_order(graph: Graph) -> bool:
    seen: set[Node] = set()
    for node in graph:
        if not ({t.node for t in node.inputs} | node.after) <= seen:
            return False
        seen.add(node)
    return True


@tf.function
def inner(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.sin(x), tf.cos(x)


def test_calls_are_read_in_place() -> None:
    @tf.function
    def middle(x: tf.Tensor) -> tf.Tensor:
        a, b = inner(x)
        return a * b

    graph = graph_of(lambda x: middle(x) + middle(x * 2.0), FLOATS)
    assert ops(graph) == ["Sin", "Cos", "Mul", "Mul", "Sin", "Cos", "Mul", "AddV2"]
    assert is_in_order(graph)
    names = [node.name for node in graph]
    assert len(set(names)) == len(names)
    (add,) = named(graph, "AddV2")
    first, _, second = named(graph, "Mul")
    assert source_of(graph.outputs[0]).node is add
    assert [source_of(tensor).node for tensor in add.inputs] == [first, second]


def test_a_call_that_returns_its_argument_vanishes() -> None:
    swap = tf.function(lambda x, y: (y, x))
    graph = graph_of(lambda x, y: tf.subtract(*swap(x, y)), FLOATS, FLOATS)
    (subtract,) = named(graph, "Sub")

    assert [source_of(tensor) for tensor in subtract.inputs] == graph.inputs[::-1]


def test_a_call_reads_captured_variables() -> None:
    variable = tf.Variable(2.0)
    scale = tf.function(lambda x: x * variable)
    graph = graph_of(lambda x: scale(x) + scale(x), FLOATS)
    reads = named(graph, "ReadVariableOp")
    assert [read.inputs[0] for read in reads] == [graph.inputs[1]] * 2
    assert graph.inputs[1].dtype == tf.resource


def test_a_legacy_function_is_called_by_its_name() -> None:
    with tf.device("CPU:0"):
        graph = graph_of(
            lambda x, n: tf.compat.v1.nn.ctc_loss_v2(
                n, x, tf.constant([2, 2]), tf.constant([5, 5]), blank_index=0
            ),
            tf.TensorSpec([5, 2, 4]),
            tf.TensorSpec([2, 2], tf.int32),
        )
    assert is_in_order(graph)
    assert not [op for op in ops(graph) if "call" in op.lower() or op.startswith("__")]
    assert "LogSoftmax" in ops(graph)


def test_a_custom_gradient_leaves_no_identity_n() -> None:
    @tf.custom_gradient
    def doubled(x: tf.Tensor) -> Any:
        return x * 2.0, lambda dy: dy * 3.0

    graph = graph_of(lambda x: (doubled(x), tf.gradients(doubled(x), x)), FLOATS)
    assert not named(graph, "IdentityN")
    assert is_in_order(graph)


def test_tensors_of_an_identity_n_do_not_wait_for_one_another() -> None:
    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        a, b = tf.identity_n([tf.sin(x), tf.cos(y)])
        return tf.exp(a), tf.math.log(b)

    graph = graph_of(step, FLOATS, FLOATS)
    (exp,), (log,) = named(graph, "Exp"), named(graph, "Log")
    (sin,), (cos,) = named(graph, "Sin"), named(graph, "Cos")
    assert runs_after(exp, sin) and not runs_after(exp, cos)
    assert runs_after(log, cos) and not runs_after(log, sin)


def test_what_changes_state_keeps_its_order() -> None:
    variable = tf.Variable(0.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        variable.assign(tf.reduce_sum(x))
        before = variable.read_value()
        variable.assign_add(1.0)
        return before + variable.read_value()

    graph = graph_of(step, FLOATS)
    writes = [node for node in graph if node.op.startswith("Assign")]
    assert [node.op for node in writes] == ["AssignVariableOp", "AssignAddVariableOp"]
    assert runs_after(writes[1], writes[0])
    (add,) = named(graph, "AddV2")
    first, second = (source_of(tensor).node for tensor in add.inputs)
    assert runs_after(first, writes[0]) and not runs_after(first, writes[1])
    assert runs_after(writes[1], first)
    assert runs_after(second, writes[1])


def test_the_order_holds_across_calls() -> None:
    variable = tf.Variable(0.0)
    add = tf.function(lambda x: variable.assign_add(tf.reduce_sum(x)))
    double = tf.function(lambda: variable.assign(variable * 2.0))

    def step(x: tf.Tensor) -> tf.Tensor:
        add(x)
        double()
        add(x)
        return variable.read_value()

    graph = graph_of(step, FLOATS)
    assert is_in_order(graph)
    first, last = named(graph, "AssignAddVariableOp")
    (middle,) = named(graph, "AssignVariableOp")
    assert runs_after(middle, first) and runs_after(last, middle)
    (product,) = named(graph, "Mul")
    (in_double,) = [t.node for t in product.inputs if t.node.op == "ReadVariableOp"]
    assert runs_after(in_double, first) and not runs_after(in_double, middle)
    assert all(runs_after(graph.outputs[0].node, node) for node in (first, middle, last))


def test_checks_prints_and_random_numbers_are_side_effects() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_positive(tf.reduce_sum(x))
        tf.print(x, output_stream="file:///dev/null")
        return x + tf.random.normal(tf.shape(x))

    graph = graph_of(step, FLOATS)
    kept = {node.op: node.is_stateful for node in graph if node.has_side_effect}
    assert kept["PrintV2"] and kept["RandomStandardNormal"]
    assert {"Assert", "If"} & set(kept)
    assert not named(graph, "ReadVariableOp")


def test_what_xla_compiles_is_known() -> None:
    compiled = tf.function(lambda x: tf.sin(x), jit_compile=True)
    graph = graph_of(lambda x: tf.cos(compiled(x)), FLOATS)
    (sin,), (cos,) = named(graph, "Sin"), named(graph, "Cos")
    assert sin.xla and not cos.xla


def test_attributes_devices_and_sources_are_read() -> None:
    def step(x: tf.Tensor) -> Any:
        with tf.device("/CPU:1"):
            return tf.raw_ops.Sum(input=x, axis=[1], keep_dims=True)

    graph = graph_of(step, FLOATS)
    (total,) = named(graph, "Sum")
    assert total.device.endswith("CPU:1")
    assert total.bool_attr("keep_dims") and not total.bool_attr("no_such")
    assert total.ints_attr("no_such") == ()
    assert total.text_attr("no_such") == ""
    assert total.static_shapes == ((None, 1),)
    source, name = total.source
    assert source.get_operation_by_name(name).type == "Sum"
    axes = constant_array(total.inputs[1])
    assert axes is not None and axes.tolist() == [1]
    assert constant_array(total.inputs[0]) is None
    assert (repr(total), total.outputs[0].rank) == ("Sum(Sum)", None)


def test_the_gradient_of_a_loop_is_read_in_an_order_that_runs() -> None:
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y = tf.sin(y) * x
        return tape.gradient(y, x)

    graph = graph_of(step, FLOATS)
    assert is_in_order(graph)
    assert len([n for n in graph if n.op in ("While", "StatelessWhile")]) == 2


def test_a_step_returns_what_is_no_tensor_too() -> None:
    traced = trace_step(
        lambda x: {"y": x * 2.0, "none": None, "pair": (x, 3)}, [FLOATS], [0], autograph=True
    )
    assert traced.graph.inputs[0].shape == (BATCH, 3)
    assert traced.batch_axes == (0,)
    # Dictionaries are flattened in the order of their keys; numbers become tensors.
    results = repack(traced.structure, ["pair 0", "pair 1", "y"])
    assert results == {"y": "y", "none": None, "pair": ("pair 0", "pair 1")}


@pytest.mark.parametrize("axis", [0, 1])
def test_the_batch_axis_of_an_argument_has_its_symbol(axis: int) -> None:
    traced = trace_step(
        lambda x: x + 1.0, [tf.TensorSpec([None, None, 2])], [axis], autograph=False
    )
    shape = traced.graph.inputs[0].shape
    assert shape is not None and shape[axis] == BATCH and shape[1 - axis] != BATCH
    assert shape[2] == 2
