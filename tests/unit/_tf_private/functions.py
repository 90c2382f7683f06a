"""Functions that are registered by their definitions, for the tests beside this file."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener._tf_private import graphs


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
