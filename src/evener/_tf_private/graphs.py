"""Types of operations; graphs as protocol buffers, functions made of them, order of operations."""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import (
    auto_control_deps_utils,
    function_def_to_graph,
    kernels,
    op_def_registry,
)
from tensorflow.python.ops import handle_data_util

from evener._tf_private.patches import Patch, wrap_with
from evener.base.user_code import is_evener


@functools.cache
def op_definition(op_type: str) -> Any:
    """Return the definition of a type of operation.

    Why: it says which outputs an operation has and whether it is stateful. There is no public
    registry. If it changes: no step can be partitioned.
    """
    definition = operation_definition(op_type)
    if definition is None:
        raise KeyError(op_type)
    return definition


@functools.cache
def is_operation(op_type: str) -> bool:
    """Return whether a type of operation is TensorFlow's, and not the name of a function.

    Why: old parts of TensorFlow call a function by an operation that is named as it is.
    If it changes: `tf.nn.ctc_loss` cannot be partitioned.
    """
    try:
        return operation_definition(op_type) is not None
    except RuntimeError:
        return False


@functools.cache
def is_stateful(op_type: str) -> bool:
    """Return whether TensorFlow calls a type of operation stateful. See `op_definition`."""
    return bool(op_definition(op_type).is_stateful)


def output_dtypes(node: Any) -> list[tf.DType]:
    """Return the dtypes of the outputs of a node definition. See `op_definition`."""
    dtypes: list[int] = []
    for arg in op_definition(node.op).output_arg:
        if arg.type_list_attr:
            dtypes.extend(node.attr[arg.type_list_attr].list.type)
            continue
        dtype = node.attr[arg.type_attr].type if arg.type_attr else arg.type
        dtypes.extend([dtype] * _num_tensors(arg, node.attr))
    return [tf.as_dtype(number) for number in dtypes]


def input_names(op_type: str) -> tuple[str, ...]:
    """Return what the definition of a type of operation calls its inputs. See `op_definition`."""
    return tuple(arg.name for arg in op_definition(op_type).input_arg)


def input_counts(op_type: str, attrs: Any) -> list[int]:
    """Return how many tensors a node has for each input of its definition. See `op_definition`."""
    return [_num_tensors(arg, attrs) for arg in op_definition(op_type).input_arg]


def _num_tensors(arg: Any, attrs: Any) -> int:
    if arg.type_list_attr:
        return len(attrs[arg.type_list_attr].list.type)
    return attrs[arg.number_attr].i if arg.number_attr else 1


def output_names(op_type: str, attrs: Any) -> list[str]:
    """Return what a function definition calls the outputs of a node: ``"y:0"``, ``"output:1"``.

    Why: inside function definitions, outputs are named by the operation's definition.
    If it changes: functions of parts are refused when they are registered.
    """
    outputs = op_definition(op_type).output_arg
    return [f"{arg.name}:{k}" for arg in outputs for k in range(_num_tensors(arg, attrs))]


# Definition of a type of operation, or None if there is none.
# Why: a kernel names the arguments that it takes in host memory; the definition says which there
# are. If it changes: nothing is said to work in host memory.
operation_definition: Callable[[str], Any] = op_def_registry.get


def registered_kernels(op_type: str) -> list[Any]:
    """Return the kernel definitions of one type of operation, for all kinds of devices.

    Why: they say which dtypes have a GPU kernel, and what works in host memory.
    If it changes: reasons for fallbacks come from the table alone.
    """
    return list(kernels.get_registered_kernels_for_op(op_type).kernel)


def operation_names() -> list[str]:
    """Return the names of all types of operations. See `operation_definition`."""
    return sorted({kernel.op for kernel in kernels.get_all_registered_kernels().kernel})


AttrValue = attr_value_pb2.AttrValue
FunctionDef = function_pb2.FunctionDef
NodeDef = node_def_pb2.NodeDef

BY_XLA = {"_XlaMustCompile": AttrValue(b=True)}
"""The attribute of a call that XLA compiles."""

_IN_LOOPS = ("_lower_using_switch_merge", "_xla_propagate_compile_time_consts")
LOWERED = {name: AttrValue(b=True) for name in _IN_LOOPS}
"""The attributes of a loop or a condition whose body may run on several devices.

Why: TensorFlow leaves the first out in functions with ``jit_compile=True``; the second tells XLA
the sizes that a body is given. There is no public way to set them on a node of a definition.
If it changes: such a body uses one device, or cannot be placed, or XLA refuses a ``Tile`` in it.
"""

_NUMBERS = itertools.count()


class FunctionBodies:
    """Finds the graphs of the functions that a traced graph calls, at any depth.

    Why: bodies of calls, loops and conditions are part of a step. There is no public way from
    the name in an attribute to the graph.
    If it changes: no step with a nested function can be partitioned.
    """

    def __init__(self, func_graph: Any) -> None:
        self._graph = func_graph
        self._found: dict[str, Any] = {}

    def find(self, name: str) -> Any:
        """Return the graph of a function, as a `FuncGraph`."""
        if name not in self._found:
            function = self._graph._get_function(name)
            graph = getattr(function, "graph", None)
            if graph is None:
                definition = (
                    function.cached_definition
                    if function is not None
                    else eager_context.context().get_function_def(name)
                )
                with self._graph.as_default():
                    graph = function_def_to_graph.function_def_to_graph(
                        definition, include_library_functions=True
                    )
            self._found[name] = graph
        return self._found[name]


def function_definition(name: str) -> Any:
    """Return the definition of a function that TensorFlow made.

    Why: a copy of a body differs in attributes of its nodes; there is no public way to read it.
    If it changes: a loop or condition that uses variables of several devices cannot run in a
    function with ``jit_compile=True``.
    """
    return eager_context.context().get_function_def(name)


def unique_function_name(name: str) -> str:
    """Return a name that no other function of this process has."""
    return f"evener_{name}_{next(_NUMBERS)}"


class Function(atomic_function.AtomicFunction):
    """A function that operations can call, until nothing refers to it.

    Why: the functions of parts are made of nodes of the traced step, without being traced
    again; the public way is to trace. A graph that calls one keeps it.
    If it changes: no step runs on several devices.
    """

    def __init__(
        self,
        definition: Any,
        *,
        children: Sequence[Function] = (),
        origins: Mapping[str, Any] | None = None,
        keeps: Any = None,
    ) -> None:
        _LINES.apply(wrap_with(_with_lines_of_program))
        context: Any = eager_context.context()
        context.add_function_def(definition)
        deep = dict.fromkeys(below for child in children for below in (child, *child.children))
        untyped: Any = None
        super().__init__(definition.signature.name, context, untyped, children=list(deep))
        self.origins = dict(origins or {})
        self._keeps = keeps


_LINES = Patch(
    "lines of failing operations",
    f"{atomic_function.__name__}:InterpolateRuntimeError.interpolate",
    why="The functions of parts are made of protocol buffers, so TensorFlow knows no line of the "
    "program for their nodes, and reports a failure once for each device.",
    if_it_changes="An error in a step says <stack traces unavailable>, with one text per device.",
)
_FUNCTIONS = "_evener_functions"
_DETECTED = "Detected at node {} defined at (most recent call last):"
_ROOTS = re.compile(
    r"\d+ root error\(s\) found\.\n(.*)\n\d+ successful operations\.\n"
    r"\d+ derived errors ignored\.(.*)",
    re.DOTALL,
)
_ROOT = re.compile(r"^  \(\d+\) ([A-Z_]+):\s*", re.MULTILINE)
_NODE = re.compile(r"{{node ([^ }]+)}}")
_CALL_OF_PART = re.compile(r"{{node (Stateful)?PartitionedCall(_\d+)?/")
_WITH_BODIES = {"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"}
_FRAME = re.compile(r'  File "([^"\n]+)", line \d+, in .*\n(?:    .*\n)?\n?')
_TENSORFLOW = f"{Path(tf.__file__).parent}{os.sep}"
# A tensor on its way to another device; TensorFlow names it after what it carries.
_CONSUMER = re.compile(r"\n\t \[\[[^\]{]*/_\d+\]\]")


def _with_lines_of_program(
    original: Callable[..., str], self: Any, message: str, nodes: Sequence[str], debug_info: Any
) -> str:
    """Return the text of an error with the lines that made its operation, as on one device.

    Where the program would fail while it is traced, that error is raised instead.
    """
    functions = kept_functions(self._func._cached_graph)
    if not functions:
        return original(self, message, nodes, debug_info)
    traced = {graph: None for function in functions for graph in function.origins.values()}
    code, found = "", _ROOTS.search(message)
    if found is not None:
        # The first in the order of the program, which one device would have met. What was cancelled
        # waited for another.
        _, *parts = _ROOT.split(found[1])
        code, first = min(
            zip(parts[::2], parts[1::2], strict=True),
            key=lambda root: (root[0] == "CANCELLED", _order_in(traced, root[1]), len(root[1])),
        )
        message = f"{message[: found.start()]}{first.rstrip()}{found[2]}"
    message = _CALL_OF_PART.sub("{{node ", _CONSUMER.sub("", message))
    nodes = list(dict.fromkeys(_NODE.findall(message)))
    text = original(self, message, nodes, debug_info)
    operations = {name: _operation_named(traced, name) for name in nodes}
    is_of_step = any(operation is not None for operation in operations.values())
    if is_of_step and isinstance(sys.exc_info()[1], tf.errors.InvalidArgumentError):
        for graph in traced:
            getattr(graph, TRACE_AS_PROGRAM, lambda: None)()
    for name, operation in operations.items():
        if operation is None:
            continue
        made = [f for f in operation.traceback or () if not f.filename.startswith(_TENSORFLOW)]
        lines = "\n".join(traceback.format_list(made))
        header = _DETECTED.format(name)
        text = text.replace(f"{header}\n<stack traces unavailable>", f"{header}\n{lines}", 1)
    text = _FRAME.sub(lambda frame: "" if _is_of_machinery(frame[1]) else frame[0], text)
    error: Any = sys.exc_info()[1]
    if isinstance(error, tf.errors.CancelledError) and code not in ("", "CANCELLED"):
        kind: Any = tf.compat.v1.errors.exception_type_from_error_code(getattr(tf.errors, code))
        raise kind(error.node_def, error.op, text) from None
    return text


def _is_of_machinery(file: str) -> bool:
    """Return whether a file is evener's, or runs the command that runs a program."""
    return file.startswith("<frozen") or is_evener(file) or Path(file).stem == "evener"


TRACE_AS_PROGRAM = "_evener_trace_as_program"
"""Attribute of the graph of a step: traces it with the shapes of the program, which may fail."""


def operation_in(graph: tf.Graph | None, name: str) -> tf.Operation | None:
    """Return an operation of a graph by its name; None for one that TensorFlow's optimizer made."""
    try:
        return None if graph is None else graph.get_operation_by_name(name)
    except (KeyError, ValueError):
        return None


def lowered_from(name: str, find: Callable[[str], tf.Operation | None]) -> tf.Operation | None:
    """Return the condition or loop whose inlined body has a node of this name."""
    while "/" in name:
        name = name.rpartition("/")[0]
        operation = find(name)
        if operation is not None:
            return operation if operation.type in _WITH_BODIES else None
    return None


def _operation_named(traced: Mapping[Any, None], name: str) -> tf.Operation | None:
    def find(name: str) -> tf.Operation | None:
        operations = (operation_in(graph, name) for graph in traced)
        return next((each for each in operations if each is not None), None)

    operation = find(name)
    return lowered_from(name, find) if operation is None else operation


def _order_in(traced: Mapping[Any, None], root: str) -> float:
    """Return when the operation that failed was made; operations of the data come first."""
    operations = [_operation_named(traced, name) for name in _NODE.findall(root)]
    return max((op._id for op in operations if op is not None), default=-1)


def kept_functions(graph: Any) -> Sequence[Function]:
    """Return the functions that a graph, or one inside of it, calls and keeps."""
    return getattr(graph, _FUNCTIONS, ())


def _keep_in_graph(*functions: Function) -> None:
    """Let the graph that is being made keep functions, and those around it."""
    graph: Any = tf.compat.v1.get_default_graph()
    # The outermost is the graph of the process, which would keep them for ever.
    while hasattr(graph, "outer_graph"):
        if not hasattr(graph, _FUNCTIONS):
            setattr(graph, _FUNCTIONS, [])
        getattr(graph, _FUNCTIONS).extend(functions)
        graph = graph.outer_graph


def call(
    function: Function,
    arguments: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    *,
    stateful: bool,
    by_xla: bool = False,
) -> list[tf.Tensor]:
    """Call a function in the graph that is being made, on the device of now."""
    _keep_in_graph(function)
    kind = tf.raw_ops.StatefulPartitionedCall if stateful else tf.raw_ops.PartitionedCall
    name = function.name.decode()
    results = kind(args=list(arguments), Tout=list(dtypes), f=name)
    # A call without results is the operation itself.
    operation = results if isinstance(results, tf.Operation) else None
    results = list(results) if isinstance(results, list | tuple) else []
    if by_xla:
        operation = operation or results[0].op
        for name, value in BY_XLA.items():
            operation._set_attr(name, value)
    return results


def call_if(
    condition: tf.Tensor,
    then: Function,
    otherwise: Function,
    arguments: Sequence[tf.Tensor],
    dtypes: Any,
) -> list[tf.Tensor]:
    """Call one of two functions without state, by a bool scalar."""
    _keep_in_graph(then, otherwise)
    results = tf.raw_ops.StatelessIf(
        cond=condition,
        input=list(arguments),
        Tout=list(dtypes),
        then_branch=then.name.decode(),
        else_branch=otherwise.name.decode(),
    )
    if results:
        results[0].op._set_attr("_lower_using_switch_merge", AttrValue(b=True))
    return list(results)


def mark_read_only(operation: tf.Operation) -> None:
    """Say of a call that it only reads the variables that it is given.

    Why: TensorFlow runs calls that are given the same variable one after another, unless they
    only read it. If it changes: the parts wait for one another.
    """
    places = [k for k, tensor in enumerate(operation.inputs) if tensor.dtype == tf.resource]
    operation._set_attr("_read_only_resource_inputs", AttrValue(list=AttrValue.ListValue(i=places)))


def type_list(dtypes: Sequence[tf.DType]) -> Any:
    """Return an attribute that holds dtypes."""
    return AttrValue(list=AttrValue.ListValue(type=[dtype.as_datatype_enum for dtype in dtypes]))


def unknown_shapes(count: int) -> Any:
    """Return an attribute that holds shapes of which nothing is known."""
    unknown: Any = None
    shape = tf.TensorShape(unknown).as_proto()
    return AttrValue(list=AttrValue.ListValue(shape=[shape] * count))


def function_reference(name: str) -> Any:
    """Return an attribute that holds a function."""
    return AttrValue(func=attr_value_pb2.NameAttrList(name=name))


def function_references(names: Sequence[str]) -> Any:
    """Return an attribute that holds several functions."""
    functions = [attr_value_pb2.NameAttrList(name=name) for name in names]
    return AttrValue(list=AttrValue.ListValue(func=functions))


def outer_tensor(tensor: tf.Tensor) -> Any | None:
    """Return the outer tensor that a tensor of a function's graph captures, or None.

    Why: `FuncGraph.captures` makes the list of all captures anew after every further one, and
    an optimizer that is traced captures thousands and asks for each.
    If it changes: operations on captured variables do not find their device.
    """
    captures = getattr(tensor.graph, "function_captures", None)
    if captures is None:
        return None
    # What was captured last is asked for most.
    for key, inner in reversed(captures.by_val_internal.items()):
        if inner is tensor:
            return captures.by_val_external[key]
    return None


def without_program_order(operation: tf.Operation) -> None:
    """Take an operation out of the order in which a function's stateful operations run.

    Why: reading the clock is stateful, and TensorFlow runs stateful operations in the order of
    the program: the clock would be read after other parts of the step, too late.
    If it changes: the times of the parts are wrong, and so are the shares made from them.
    """
    order = getattr(operation.graph, "experimental_acd_manager", None)
    if order is not None:
        order.run_independently(operation)


def written_resources(operation: tf.Operation) -> list[Any]:
    """Return the inputs of an operation that are resources, such as variables, which it writes.

    Why: whether a call of a function writes a variable or only reads it is known to TensorFlow's
    order of stateful operations alone. If it changes: steps on one device are not timed.
    """
    return list(auto_control_deps_utils.get_read_write_resource_inputs(operation)[1])


# Copies the shape of a variable to a placeholder for it.
# Why: sizes in a placed graph follow from it. If it changes: sizes of copies are unknown.
copy_handle_data = handle_data_util.copy_handle_data


def shape_of_variable(graph: Any, operation: str, index: int) -> tuple[int, ...] | None:
    """Return the shape of a variable by its handle, an output of an operation, if it is known.

    Why: a body of a loop has the handles of variables alone, as placeholders.
    If it changes: rows are gathered from variables on one device, loops around them included.
    """
    handle = graph.get_operation_by_name(operation).outputs[index]
    kinds = handle_data_util.get_handle_data(handle).shape_and_type
    sizes = tuple(dim.size for kind in kinds for dim in kind.shape.dim)
    is_known = len(kinds) == 1 and not kinds[0].shape.unknown_rank and -1 not in sizes
    return sizes if is_known else None
