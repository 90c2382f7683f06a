"""Uses of graphs as protocol buffers: TensorFlow still has them, and they do what is said."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_debug_info_pb2

from evener._tf_private import graphs, patches
from evener._tf_private.functions import trained_variables
from evener._tf_private.graphs import (
    copy_handle_data,
    operation_definition,
    operation_names,
    outer_tensor,
    registered_kernels,
    without_program_order,
    written_resources,
)


def concrete(function: Any, *specs: Any) -> Any:
    return tf.function(function).get_concrete_function(*specs)


def registered(function: Any, *specs: Any) -> graphs.Function:
    """Register the definition of a function under a name of its own."""
    definition = graphs.FunctionDef()
    definition.CopyFrom(concrete(function, *(specs or [tf.TensorSpec([])])).function_def)
    definition.signature.name = graphs.unique_function_name("test")
    return graphs.Function(definition)


def registered_node(op: str, attrs: dict[str, Any], result: str) -> graphs.Function:
    """Register a function of an int32 and a float32 scalar, made of one node."""
    definition = graphs.FunctionDef()
    definition.signature.name = graphs.unique_function_name("node")
    for name, dtype in (("k", tf.int32), ("x", tf.float32)):
        argument = definition.signature.input_arg.add()
        argument.name, argument.type = name, dtype.as_datatype_enum
    output = definition.signature.output_arg.add()
    output.name, output.type = "y", tf.float32.as_datatype_enum
    node = definition.node_def.add()
    node.name, node.op = "node", op
    node.input.extend(["k", "x"])
    for key, value in attrs.items():
        node.attr[key].CopyFrom(value)
    definition.ret["y"] = f"node:{result}"
    return graphs.Function(definition)


def run_registered(function: graphs.Function, k: int, x: float) -> float:
    run = tf.function(lambda *args: graphs.call(function, args, [tf.float32], stateful=False))
    return float(run(tf.constant(k), tf.constant(x))[0])


pytestmark = pytest.mark.usefixtures("logical_cpus")
FLOATS = tf.TensorSpec([None, 3])


def definitions(function: Any, *specs: Any) -> dict[str, Any]:
    graph = concrete(function, *(specs or [FLOATS])).graph
    return {node.name: node for node in graph.as_graph_def().node}


def test_definitions_and_kernels_of_operations_are_found() -> None:
    definition = graphs.op_definition("Split")
    assert [arg.name for arg in definition.input_arg] == ["split_dim", "value"]
    assert definition.output_arg[0].number_attr == "num_split"
    assert {attr.name for attr in definition.attr} == {"num_split", "T"}
    with pytest.raises((KeyError, RuntimeError)):
        graphs.op_definition("NoSuchOperation")
    assert "CPU" in {kernel.device_type for kernel in registered_kernels("MatMul")}
    assert registered_kernels("NoSuchOperation") == []
    assert operation_definition("NoSuchOperation") is None
    definition = operation_definition("MatMul")
    assert [argument.name for argument in definition.input_arg] == ["a", "b"]
    assert "MatMul" in operation_names() and graphs.is_operation("MatMul")
    assert not graphs.is_operation("__inference_step_12")
    assert not graphs.is_operation("NoSuchOperation")


@pytest.mark.parametrize(
    ("op", "is_stateful"),
    [
        ("MatMul", False),
        ("StatelessWhile", False),
        ("PartitionedCall", False),
        ("ReadVariableOp", True),
        ("AssignVariableOp", True),
        ("RandomUniform", True),
        ("PrintV2", True),
        ("While", True),
        ("If", True),
        ("Case", True),
        ("StatefulPartitionedCall", True),
    ],
)
def test_state_is_known(op: str, is_stateful: bool) -> None:
    assert graphs.is_stateful(op) == is_stateful


def test_dtypes_and_names_of_outputs() -> None:
    def step(x: tf.Tensor) -> Any:
        tf.split(x, 3, axis=1, name="parts")
        tf.unique(tf.cast(tf.reshape(x, [-1]), tf.int32), tf.int64, name="different")
        tf.raw_ops.IdentityN(input=[x, tf.constant(1)], name="both")
        tf.raw_ops.FusedBatchNormV3(
            x=x[:, None, None], scale=[1.0] * 3, offset=[1.0] * 3, mean=[], variance=[], name="norm"
        )
        tf.raw_ops.NoOp(name="nothing")
        return x

    nodes = definitions(step)
    floats = tf.float32
    expected = {
        "parts": (["output:0", "output:1", "output:2"], [floats] * 3),
        "different": (["y:0", "idx:0"], [tf.int32, tf.int64]),
        "both": (["output:0", "output:1"], [floats, tf.int32]),
        "norm": (
            [
                "y:0",
                "batch_mean:0",
                "batch_variance:0",
                "reserve_space_1:0",
                "reserve_space_2:0",
                "reserve_space_3:0",
            ],
            [floats] * 6,
        ),
        "nothing": ([], []),
    }
    for name, (names, dtypes) in expected.items():
        node = nodes[name]
        assert graphs.output_names(node.op, node.attr) == names
        assert graphs.output_dtypes(node) == dtypes


def test_names_of_outputs_are_those_of_function_definitions() -> None:
    """TensorFlow itself writes them so when it makes the definition of a function."""

    def step(x: tf.Tensor) -> Any:
        parts = tf.split(x, 3, axis=1)
        values, places = tf.unique(tf.reshape(parts[1], [-1]))
        return values * 2.0, places + 1

    definition = concrete(step, FLOATS).function_def
    written = {name for node in definition.node_def for name in node.input if ":" in name}
    made = {
        f"{node.name}:{output}"
        for node in definition.node_def
        for output in graphs.output_names(node.op, node.attr)
    }
    assert written and written <= made
    assert {name for name in written if "output:1" in name or "idx:0" in name}


def test_bodies_of_functions_are_found_at_any_depth() -> None:
    inner = tf.function(lambda x: tf.sin(x))

    def step(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(2):
            if tf.reduce_sum(x) > 0:
                x = inner(x)
        return x

    graph = concrete(step, FLOATS).graph
    bodies = graphs.FunctionBodies(graph)
    (loop,) = [n for n in graph.as_graph_def().node if n.op in ("While", "StatelessWhile")]
    body = bodies.find(loop.attr["body"].func.name)
    assert body is bodies.find(loop.attr["body"].func.name)
    (condition,) = [n for n in body.as_graph_def().node if n.op in ("If", "StatelessIf")]
    then = bodies.find(condition.attr["then_branch"].func.name)
    (called,) = [n for n in then.as_graph_def().node if n.op.endswith("PartitionedCall")]
    found = bodies.find(called.attr["f"].func.name)
    assert "Sin" in {op.type for op in found.get_operations()}
    assert len(found.inputs) == len(found.outputs) == 1
    assert isinstance(found.control_outputs, list)
    assert len(body.inputs) == len(loop.input)


def test_bodies_of_registered_definitions_are_found() -> None:
    """The gradient of a call is a function of which only the definition is there."""
    function = registered(lambda x: tf.exp(x))
    names = {graphs.unique_function_name("part") for _ in range(3)}
    assert len(names) == 3 and all("part" in name for name in names)

    def step(x: tf.Tensor) -> Any:
        return graphs.call(function, [x], [tf.float32], stateful=False)

    graph = concrete(step, tf.TensorSpec([])).graph
    found = graphs.FunctionBodies(graph).find(function.name.decode())
    assert "Exp" in {op.type for op in found.get_operations()}
    assert [t.dtype for t in found.inputs] == [tf.float32]


def test_a_graph_that_calls_a_function_keeps_it() -> None:
    functions = [registered(lambda x: x * 2.0)]
    name = functions[0].name

    def step(x: tf.Tensor) -> Any:
        return graphs.call(functions[0], [x], [tf.float32], stateful=False)

    inner = [tf.function(step)]
    outer: list[Any] = [tf.function(lambda x: inner[0](x))]
    assert float(outer[0](tf.constant(3.0))[0]) == 6.0
    functions.clear()
    inner.clear()
    gc.collect()
    assert float(outer[0](tf.constant(3.0))[0]) == 6.0
    outer.clear()
    gc.collect()
    with pytest.raises((tf.errors.NotFoundError, tf.errors.InternalError)):
        tf.raw_ops.PartitionedCall(args=[tf.constant(3.0)], Tout=[tf.float32], f=name.decode())


def test_a_function_outlives_a_graph_and_is_called_on_the_device_of_now() -> None:
    function = registered(lambda x: x * 2.0)
    run = tf.function(lambda x: graphs.call(function, [x], [tf.float32], stateful=False))
    assert float(run(tf.constant(3.0))[0]) == 6.0
    del run
    gc.collect()
    operations: list[tf.Operation] = []

    def step(x: tf.Tensor) -> Any:
        with tf.device("/CPU:1"):
            (result,) = graphs.call(function, [x], [tf.float32], stateful=False)
        operations.append(result.op)
        return result

    assert float(tf.function(step)(tf.constant(3.0))) == 6.0
    (operation,) = operations
    assert operation.type == "PartitionedCall"
    assert operation.device.endswith("CPU:1")


def test_a_call_for_its_side_effects_alone() -> None:
    variable = tf.Variable(1.0)
    definition = graphs.FunctionDef()
    definition.CopyFrom(concrete(lambda: variable.assign(5.0)).function_def)
    definition.signature.name = graphs.unique_function_name("assign")
    dtypes = [tf.as_dtype(arg.type) for arg in definition.signature.output_arg]
    function = graphs.Function(definition)

    @tf.function(autograph=False)
    def step() -> None:
        graphs.call(function, [variable.handle], dtypes, stateful=True)

    step()
    assert float(variable) == 5.0


def test_one_of_two_functions_is_called() -> None:
    """Only the chosen one runs: the other would fail."""
    spec = [tf.TensorSpec([None])]
    first = registered(lambda x: tf.raw_ops.CheckNumerics(tensor=x, message=""), *spec)
    other = registered(lambda x: tf.zeros([2]), *spec)

    @tf.function(input_signature=[tf.TensorSpec([], tf.bool), *spec], autograph=False)
    def run(condition: tf.Tensor, x: tf.Tensor) -> Any:
        results = graphs.call_if(condition, first, other, [x], [tf.float32])
        assert results[0].op.get_attr("_lower_using_switch_merge")
        return results

    assert run(True, [1.0, 2.0])[0].numpy().tolist() == [1.0, 2.0]
    assert run(False, [1.0, float("nan")])[0].numpy().tolist() == [0.0, 0.0]
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(True, [1.0, float("nan")])


def test_calls_that_only_read_are_not_ordered() -> None:
    variable = tf.Variable([1.0, 2.0])
    definition = graphs.FunctionDef()
    definition.CopyFrom(concrete(lambda: variable + 0.0).function_def)
    definition.signature.name = graphs.unique_function_name("read")
    function = graphs.Function(definition)
    calls: dict[bool, list[Any]] = {True: [], False: []}

    def step(*, is_marked: bool) -> Any:
        results = []
        for _ in range(2):
            (result,) = graphs.call(function, [variable.handle], [tf.float32], stateful=True)
            if is_marked:
                graphs.mark_read_only(result.op)
            calls[is_marked].append(result.op)
            results.append(result)
        return results

    for is_marked in (True, False):
        run = tf.function(lambda is_marked=is_marked: step(is_marked=is_marked), autograph=False)
        assert [result.numpy().tolist() for result in run()] == [[1.0, 2.0]] * 2
        first, second = calls[is_marked][-2:]
        assert (first in second.control_inputs) != is_marked


def test_clocks_are_taken_out_of_the_order_of_the_program() -> None:
    def clocks(free: bool) -> list[tf.Operation]:
        @tf.function(autograph=False)
        def read() -> tuple[tf.Tensor, tf.Tensor]:
            first, second = tf.timestamp(), tf.timestamp()
            if free:
                without_program_order(first.op)
                without_program_order(second.op)
            return first, second

        graph = read.get_concrete_function().graph
        return [op for op in graph.get_operations() if op.type == "Timestamp"]

    assert clocks(free=False)[1].control_inputs
    assert not clocks(free=True)[1].control_inputs


def test_handle_data_tells_the_shape_behind_a_placeholder() -> None:
    variable = tf.Variable(tf.ones([2, 3]))
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder(tf.resource, [])
        copy_handle_data(variable.handle, placeholder)
        read = tf.raw_ops.ReadVariableOp(resource=placeholder, dtype=tf.float32)
    assert read.shape == [2, 3]


def test_what_a_captured_tensor_stands_for_is_found() -> None:
    variable, outer = tf.Variable([1.0, 2.0]), tf.zeros([300])
    found = []

    @tf.function(autograph=False)
    def read() -> tf.Tensor:
        handle = tf.compat.v1.get_default_graph().capture(variable.handle)
        total = tf.reduce_sum(outer) + tf.reduce_sum(variable)
        captured = tf.compat.v1.get_default_graph().capture(outer)
        found.extend(map(outer_tensor, (handle, captured, total)))
        return total

    read.get_concrete_function()
    assert found[0] is variable.handle
    assert found[1] is outer
    assert found[2] is None
    with tf.Graph().as_default():
        assert outer_tensor(tf.constant(1.0)) is None


def test_it_is_seen_which_variables_are_trained_and_written() -> None:
    weight, count = tf.Variable(1.0), tf.Variable(0.0, trainable=False)
    read = tf.function(lambda: weight + count)
    written = []

    @tf.function(autograph=False)
    def step() -> None:
        graph = tf.compat.v1.get_default_graph()
        with trained_variables() as trained:
            weight.assign_sub(read())
            count.assign_add(1.0)
        assert [variable is weight for variable in trained] == [True]
        handles = {graph.capture(variable.handle).ref(): variable for variable in (weight, count)}
        for operation in graph.get_operations():
            for resource in written_resources(operation):
                written.append(handles[resource.ref()])

    step.get_concrete_function()
    assert [variable is weight for variable in written] == [True, False]


ROOTS = """2 root error(s) found.
  (0) CANCELLED:  Function was cancelled before it was started
  (1) INVALID_ARGUMENT:  Incompatible shapes: [2] vs. [3]
\t [[{{node sub}}]]
\t [[unstack/_3]]
0 successful operations.
0 derived errors ignored. [Op:step]"""


def test_of_several_failures_the_one_of_the_program_is_told() -> None:
    kept = SimpleNamespace(_evener_functions=[SimpleNamespace(origins={})])
    function = SimpleNamespace(_cached_graph=kept)
    failed: Any = graphs.atomic_function.InterpolateRuntimeError(function)
    graphs._LINES.apply(patches.wrap_with(graphs._with_lines_of_program))
    debug_info = graph_debug_info_pb2.GraphDebugInfo()
    text = failed.interpolate(ROOTS, [], debug_info)
    assert text.endswith("Incompatible shapes: [2] vs. [3]\n\t [[{{node sub}}]] [Op:step]")
    assert "CANCELLED" not in text and "unstack" not in text
    try:
        raise tf.errors.CancelledError(None, None, ROOTS)
    except tf.errors.CancelledError:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Incompatible shapes"):
            failed.interpolate(ROOTS, [], debug_info)


def test_attributes_of_a_loop() -> None:
    specs = (tf.TensorSpec([], tf.int32), tf.TensorSpec([]))
    condition = registered(lambda k, x: k < 3, *specs)
    body = registered(lambda k, x: (k + 1, x * 2.0), *specs)
    attrs = {
        "T": graphs.type_list([tf.int32, tf.float32]),
        "cond": graphs.function_reference(condition.name.decode()),
        "body": graphs.function_reference(body.name.decode()),
        "output_shapes": graphs.unknown_shapes(2),
        "parallel_iterations": graphs.AttrValue(i=10),
        "_lower_using_switch_merge": graphs.AttrValue(b=True),
    }
    name = registered_node("StatelessWhile", attrs, "output:1")
    assert run_registered(name, 0, 1.0) == 8.0


def test_attributes_of_a_choice_of_several() -> None:
    branches = [registered(lambda x, k=k: x + k) for k in (1.0, 2.0)]
    attrs = {
        "branches": graphs.function_references([branch.name.decode() for branch in branches]),
        "Tin": graphs.type_list([tf.float32]),
        "Tout": graphs.type_list([tf.float32]),
        "output_shapes": graphs.unknown_shapes(1),
    }
    name = registered_node("StatelessCase", attrs, "output:0")
    assert [run_registered(name, k, 1.0) for k in (0, 1)] == [2.0, 3.0]
