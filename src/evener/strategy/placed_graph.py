"""Reads a placed graph: its operations, copies between devices, collectives and fallbacks.

Every node has a Python operation with a source line, a kind of work, and sizes.

TensorFlow inlines the functions that a step calls into one graph and optimizes it. A node records
the function and the name it had there; nodes that TensorFlow adds (the switches of a condition,
folded constants) do not. The kinds of work::

    forward    every node that is none of the others
    gradient   operations made by a tape or `tf.gradients`, and those that only read gradients
    optimizer  between the gradients and the variables: from the last gradient operation to
               the writes that depend on one, with all their other inputs (slots, learning
               rates), unless a gradient needs them too; and operations made by an optimizer's
               ``apply``
    input      iterators and datasets, and operations that unpack their elements

Gradient operations are identified by the stack that made them (in a tape, in a backward function),
optimizer operations by the graph; names are not used.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from evener._tf_private.functions import definition_frames
from evener._tf_private.graphs import copy_handle_data, lowered_from, operation_in
from evener.auditing import Collective, Copy, Fallback, Kind, Line, Operation
from evener.base.user_code import is_own
from evener.devices.names import GPU, kind_of, qualified_name
from evener.strategy import kernels

ASKED = "_evener_asked"
"""The attribute of an operation that holds the GPU it requests, such as ``"gpu:1"``."""


def requested(operation: tf.Operation) -> str | None:
    """Return the device that an operation requests, or None if it requests none.

    For a stand-in device (`evener.run.device_calls`), that is the GPU it stands in for.
    """
    return getattr(operation, ASKED, None) or qualified_name(operation.device)


def is_gpu(name: str) -> bool:
    """Return whether a name is that of a GPU, on any machine.

    >>> is_gpu("gpu:0"), is_gpu("worker:1/gpu:0"), is_gpu("cpu:0")
    (True, True, False)
    """
    return kind_of(name) is GPU


def present() -> tuple[str, ...]:
    def order(name: str) -> tuple[bool, str, int]:
        kind, _, number = name.rpartition(":")
        return not is_gpu(name), kind, int(number or 0)

    names = {qualified_name(device.name) or "" for device in tf.config.list_logical_devices()}
    return tuple(sorted(names, key=order))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    graph: Any  # The placed graph: a ``GraphDef`` in which every node has a device
    parts: tuple[Any, ...]  # The graph of each device, with its ``_Send`` and ``_Recv`` nodes
    written: Any  # The placed graph without optimization
    # The Python graphs of the function and of all functions it calls, by name
    functions: dict[str, tf.Graph]
    name: str  # The function's name among them
    inputs: tuple[Any, ...]  # The input tensors for which it was placed, of any shape and dtype


_TAPES = (
    ("tensorflow/python/eager/imperative_grad.py", "imperative_grad"),
    ("tensorflow/python/ops/gradients_util.py", "_GradientsHelper"),
)
_OPTIMIZERS = ("keras/src/optimizers/", "keras/src/backend/tensorflow/optimizer")
# Frames outside of its function `audit` belong to the call of the audit.
_AUDIT = str(Path(__file__).with_name("step_audit.py"))
_APPLIES = ("apply", "apply_gradients")


class Origins:
    """Finds the Python operations behind the nodes of one placed graph."""

    def __init__(self, functions: dict[str, tf.Graph], name: str) -> None:
        self._functions, self._name = functions, name
        self._frames: dict[tf.Operation, list[tuple[str, int, str]]] = {}

    def of(self, node: Any, function: str | None = None) -> tf.Operation | None:
        debug = node.experimental_debug_info
        if function is None and debug.original_func_names:
            return self._find(debug.original_func_names[-1], debug.original_node_names[-1])
        operation = self._find(function or self._name, node.name)
        if operation is None:
            return lowered_from(node.name, functools.partial(self._find, self._name))
        return operation

    def _find(self, function: str, name: str) -> tf.Operation | None:
        return operation_in(self._functions.get(function), name)

    def frames(self, operation: tf.Operation) -> list[tuple[str, int, str]]:
        """Return the stack frames in which an operation was made: file, line, function."""
        if operation not in self._frames:
            self._frames[operation] = definition_frames(operation)
        return self._frames[operation]

    def line(self, operation: tf.Operation | None) -> Line | None:
        """Return the innermost line of user code that made an operation, or None."""
        if operation is None or operation.type == "Placeholder":
            return None
        for file, number, function in reversed(self.frames(operation)):
            if file == _AUDIT and function == "audit":
                return None
            if is_own(file):
                return Line(path=file, number=number)
        return None

    def is_made_by_tape(self, operation: tf.Operation) -> bool:
        return any(
            function == tape and file.endswith(where)
            for file, _, function in self.frames(operation)
            for where, tape in _TAPES
        )

    def is_made_by_optimizer(self, operation: tf.Operation) -> bool:
        return any(
            function in _APPLIES and any(part in file for part in _OPTIMIZERS)
            for file, _, function in self.frames(operation)
        )


# Nodes that only move tensors into and out of functions and devices.
PLUMBING = frozenset(
    "_Arg _Retval _DeviceArg _DeviceRetval _Send _Recv _HostSend _HostRecv NoOp".split()
)
CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall", "XlaLaunch"))
_WRITES = re.compile(
    r"Assign(Add|Sub)?VariableOp|ResourceApply\w+|ResourceSparseApply\w+|ResourceScatter\w+"
    r"|ResourceStridedSliceAssign|Assign\w*|Scatter(Add|Sub|Update|NdAdd|NdSub|NdUpdate)"
)
_DATA = re.compile(r"\w*Iterator\w*|\w*Dataset\w*")
_OPTIONALS = frozenset(("OptionalGetValue", "OptionalHasValue", "OptionalFromValue"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Nodes and the dataflow between them, without the back edges of loops."""

    nodes: Mapping[str, Any]  # The nodes, by name
    inputs: Mapping[str, Sequence[str]]  # Names of the producers of each node
    outputs: Mapping[str, Sequence[str]]  # Names of the consumers of each node


def flow_of(nodes: Iterable[Any]) -> Flow:
    """Return the dataflow between the nodes of a ``GraphDef`` or a ``FunctionDef``."""
    by_name = {node.name: node for node in nodes}
    inputs: dict[str, tuple[str, ...]] = {}
    outputs: dict[str, list[str]] = {name: [] for name in by_name}
    for name, node in by_name.items():
        taken = dict.fromkeys(
            tensor.partition(":")[0] for tensor in node.input if tensor[:1] != "^"
        )
        if node.op == "ReadVariableOp":
            # It reads what was written before.
            for control in (name[1:] for name in node.input if name.startswith("^")):
                earlier = by_name.get(control)
                if earlier is not None and writes_variables(earlier.op):
                    if earlier.input[0] == node.input[0]:
                        taken[control] = None
        inputs[name] = tuple(
            producer
            for producer in taken
            if producer in by_name and by_name[producer].op != "NextIteration"
        )
        for producer in inputs[name]:
            outputs[producer].append(name)
    return Flow(nodes=by_name, inputs=inputs, outputs=outputs)


def kinds_of(flow: Flow, origins: Origins, function: str | None = None) -> dict[str, Kind]:
    made = {name: origins.of(node, function) for name, node in flow.nodes.items()}
    gradient = {n for n, op in made.items() if op is not None and origins.is_made_by_tape(op)}
    # Nodes that TensorFlow added; in reverse, so that one of them can follow another.
    for name in reversed([name for name, operation in made.items() if operation is None]):
        consumers = flow.outputs[name]
        if consumers and all(consumer in gradient for consumer in consumers):
            gradient.add(name)
    needed, after = _reached(gradient, flow.inputs), _reached(gradient, flow.outputs)
    writes = {n for n in after - gradient - needed if writes_variables(flow.nodes[n].op)}
    leading = _reached(writes, flow.inputs, stop=gradient)
    handles = {n for n in leading if flow.nodes[n].op in PLUMBING}
    optimizer = (writes | leading) - gradient - needed - handles
    optimizer |= {
        n
        for n, op in made.items()
        if op is not None and n not in gradient and origins.is_made_by_optimizer(op)
    }
    # Gradients that are only read, as for their norm.
    gradient |= after - needed - optimizer
    data = {name for name, node in flow.nodes.items() if is_data(node.op)}
    others = {name for name, node in flow.nodes.items() if node.op not in _OPTIONALS}
    data |= _reached(data, flow.outputs, stop=others)
    kinds: dict[str, Kind] = dict.fromkeys(flow.nodes, "forward")
    kinds |= dict.fromkeys(gradient, "gradient")
    kinds |= dict.fromkeys(data, "input")
    kinds |= dict.fromkeys(optimizer, "optimizer")
    return kinds


def kinds_after(
    flow: Flow, written: Flow, kinds: Mapping[str, Kind], origins: Origins
) -> dict[str, Kind]:
    by_operation: dict[Any, Kind] = {
        origins.of(node): kinds[name] for name, node in written.nodes.items()
    }
    found: dict[str, Kind] = {}
    for name, node in flow.nodes.items():
        made = origins.of(node)
        if name in kinds:
            found[name] = kinds[name]
        elif made is not None and made in by_operation:
            found[name] = by_operation[made]
    for name in reversed([name for name in flow.nodes if name not in found]):
        consumers: set[Kind] = {found.get(consumer, "forward") for consumer in flow.outputs[name]}
        found[name] = consumers.pop() if len(consumers) == 1 else "forward"
    return found


def is_data(op_type: str) -> bool:
    return bool(_DATA.fullmatch(op_type))


def writes_variables(op_type: str) -> bool:
    """Return whether a type of operation writes a variable.

    >>> writes_variables("AssignSubVariableOp"), writes_variables("MatMul")
    (True, False)
    """
    return bool(_WRITES.fullmatch(op_type))


def _reached(
    names: Iterable[str], edges: Mapping[str, Sequence[str]], stop: Set[str] = frozenset()
) -> set[str]:
    """Return all nodes that edges lead to from some nodes, up to ``stop``."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        for name in edges[waiting.pop()]:
            if name not in found and name not in stop:
                found.add(name)
                waiting.append(name)
    return found


def _outputs_of(
    graph: Any, inputs: Sequence[Any], drawn: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    """Return tensors like the outputs of each node of a graph that was placed for these inputs.

    TensorFlow's shape functions infer their shapes from those of the inputs. A shape that depends
    on values is unknown before the step runs.
    """
    outputs: dict[str, Sequence[Any]] = {
        node.name: [inputs[node.attr["index"].i]]
        for node in graph.node
        if node.op in ("_Arg", "_DeviceArg") and node.attr["index"].i < len(inputs)
    }
    outputs.update(drawn)
    known = {f"{n}:{i}": x for n, xs in outputs.items() for i, x in enumerate(xs)}
    plain = tf.compat.v1.GraphDef()
    plain.versions.CopyFrom(graph.versions)
    plain.library.CopyFrom(graph.library)
    for node in graph.node:
        if node.op not in PLUMBING:
            bare = plain.node.add()
            bare.CopyFrom(node)
            # Without device, control inputs and private attributes.
            bare.device = ""
            for name in [name for name in bare.attr if name.startswith("_")]:
                del bare.attr[name]
            del bare.input[:]
            bare.input.extend(tensor for tensor in node.input if not tensor.startswith("^"))
    used = {tensor for node in plain.node for tensor in node.input}
    inferring = tf.Graph()
    with inferring.as_default():
        placeholders: dict[str, tf.Tensor] = {}
        for name, tensor in known.items():
            placeholder = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
            if tensor.dtype == tf.resource:
                copy_handle_data(tensor, placeholder)
            if name in used or name.removesuffix(":0") in used:
                placeholders[name] = placeholder
        try:
            tf.graph_util.import_graph_def(plain, name="", input_map=placeholders)
        except ValueError:
            # Not every placed graph can be imported again; then sizes are unknown.
            return outputs
    return {op.name: list(op.outputs) for op in inferring.get_operations()} | outputs


def num_bytes_of(outputs: Sequence[Any], tensor: str) -> int | None:
    """Return the bytes of a tensor of a node, such as ``"name:1"``, or None if they are unknown."""
    number = int(tensor.partition(":")[2] or 0)
    if number >= len(outputs):
        return None
    output = outputs[number]
    if not output.dtype.size or not output.shape.is_fully_defined():
        return None
    return math.prod(output.shape.as_list()) * output.dtype.size


_COLLECTIVE = re.compile(
    r"Collective(Reduce|Gather|BcastSend|BcastRecv|AllToAll|ReduceScatter)\w*|Nccl\w+"
)
# These carry, name or describe tensors: it does not matter that they are not on the GPU.
_NO_WORK = frozenset(
    "Const Identity IdentityN Shape ShapeN Rank Size VariableShape Placeholder VarHandleOp "
    "StopGradient PreventGradient Assert ControlTrigger "
    "Switch Merge Enter Exit NextIteration LoopCond".split()
)


class GraphReader:
    def __init__(
        self, placed: Placed, assume_gpus: bool, drawn: Mapping[str, Sequence[Any]]
    ) -> None:
        self._placed, self._assume_gpus = placed, assume_gpus
        self._origins = Origins(placed.functions, placed.name)
        self._flow = flow_of(placed.graph.node)
        written = flow_of(placed.written.node)
        kinds = kinds_of(written, self._origins)
        self._kinds = kinds_after(self._flow, written, kinds, self._origins)
        self._library = {
            function.signature.name: function for function in placed.graph.library.function
        }
        self._outputs = _outputs_of(placed.graph, placed.inputs, drawn)
        self._present = present()
        # Including those of functions that are not inlined.
        self.operations: list[Operation] = []
        self.fallbacks: list[Fallback] = []
        for name, node in self._flow.nodes.items():
            if not _only_moves(node):
                device = qualified_name(node.device) or ""
                self._add(node, device, self._kinds[name], self._origins.of(node), None)
        # Those of functions that are not inlined, each once.
        for name, node in self._flow.nodes.items():
            device = qualified_name(node.device) or ""
            for function in _called(node):
                self._add_function(function, self._kinds[name], device, name, {name})

    def copies(self) -> tuple[Copy, ...]:
        enters = [name for name, node in self._flow.nodes.items() if node.op == "Enter"]
        exits = {name for name, node in self._flow.nodes.items() if node.op == "Exit"}
        looped = {*enters, *_reached(enters, self._flow.outputs, exits)} - exits
        copies: list[Copy] = []
        for send in (node for part in self._placed.parts for node in part.node):
            if send.op != "_Send" or send.attr["client_terminated"].b:
                continue
            tensor, target = send.input[0], send.attr["recv_device"].s.decode()
            name = tensor.partition(":")[0]
            if name.startswith("^") or "/ctrl/_" in name:
                continue  # A control dependency.
            made = self._origins.of(self._flow.nodes[name]) if name in self._flow.nodes else None
            num_bytes = num_bytes_of(self._outputs.get(name, ()), tensor)
            # In loops, the Python graph has more static shapes. Fused operations have outputs
            # without a counterpart in Python.
            if num_bytes is None and made is not None and made.type == self._flow.nodes[name].op:
                num_bytes = num_bytes_of(made.outputs, tensor)
            lines = [
                self._line(consumer)
                for consumer in self._flow.outputs.get(name, ())
                if self._flow.nodes[consumer].device == target
            ]
            copies.append(
                Copy(
                    tensor=tensor,
                    num_bytes=num_bytes,
                    source=qualified_name(send.attr["send_device"].s.decode()) or "",
                    target=qualified_name(target) or "",
                    kind=self._kinds.get(name, "forward"),
                    line=self._origins.line(made),
                    needed_by=next((line for line in lines if line is not None), None),
                    in_loop=name in looped,
                )
            )
        return tuple(copies)

    def collectives(self) -> tuple[Collective, ...]:
        return tuple(
            Collective(
                operation=name,
                type=node.op,
                device=qualified_name(node.device) or "",
                num_bytes=num_bytes_of(self._outputs.get(name, ()), name),
                line=self._line(name),
            )
            for name, node in self._flow.nodes.items()
            if _COLLECTIVE.fullmatch(node.op)
        )

    def _line(self, name: str) -> Line | None:
        return self._origins.line(self._origins.of(self._flow.nodes[name]))

    def _add_function(
        self, function: str, kind: Kind, device: str, within: str, entered: set[str]
    ) -> None:
        if function not in self._library or function in entered:
            return
        flow = flow_of(self._library[function].node_def)
        kinds = kinds_of(flow, self._origins, function)
        trains = "gradient" in kinds.values()
        for name, node in flow.nodes.items():
            # A forward operation in there does the kind of work of the call.
            inner_kind = kind if kinds[name] == "forward" and not trains else kinds[name]
            if not _only_moves(node):
                self._add(node, device, inner_kind, self._origins.of(node, function), within)
            for inner in _called(node):
                self._add_function(inner, inner_kind, device, within, {*entered, function})

    def _add(
        self, node: Any, device: str, kind: Kind, made: tf.Operation | None, within: str | None
    ) -> None:
        operation = Operation(
            name=node.name,
            type=node.op,
            requested=None if made is None else requested(made),
            device=device,
            kind=kind,
            line=self._origins.line(made),
            within=within,
        )
        self.operations.append(operation)
        if within is not None or node.op in _NO_WORK or (kind == "input" and is_data(node.op)):
            return
        reason = self._why_not_there(operation, node, made)
        if reason is not None:
            self.fallbacks.append(
                Fallback(
                    operation=node.name,
                    type=node.op if made is None else made.type,
                    requested=operation.requested,
                    device=device,
                    reason=reason.reason,
                    why=reason.why,
                    line=operation.line,
                )
            )

    def _why_not_there(
        self, operation: Operation, node: Any, made: tf.Operation | None
    ) -> kernels.NotOnGpu | None:
        wanted, used = operation.requested, operation.device
        if self._assume_gpus if wanted is None else is_gpu(wanted):
            # Grappler may have replaced it by an operation that only the CPU has.
            attrs = node.attr if made is None else made.node_def.attr
            dtypes = {
                name: tf.dtypes.as_dtype(value.type).name
                for name, value in attrs.items()
                if value.HasField("type") and value.type
            }
            reason = kernels.why_not_on_gpu(node.op if made is None else made.type, dtypes)
            if reason is not None:
                return reason
        # Where a CPU device stands in for the requested GPU, `here` is that device.
        here = wanted if made is None else qualified_name(made.device)
        if wanted is None or used in (wanted, here):
            return None
        if wanted not in self._present and here not in self._present:
            if self._assume_gpus and is_gpu(wanted) and not any(map(is_gpu, self._present)):
                return None  # The audit only assumes that it exists.
            return kernels.NotOnGpu(
                reason="no_such_device",
                why=f"{wanted} does not exist; TensorFlow has {', '.join(self._present)}, and soft "
                "placement used another device",
            )
        if not is_gpu(wanted) or is_gpu(used):
            return None
        return kernels.NotOnGpu(
            reason="beside",
            why=f"{wanted} exists; TensorFlow colocated it with a variable or an input on {used}",
        )


def _called(node: Any) -> list[str]:
    names = []
    for value in node.attr.values():
        if value.HasField("func"):
            names.append(value.func.name)
        names += [function.name for function in value.list.func]
    return names


def _only_moves(node: Any) -> bool:
    """Return whether a node only moves tensors, or calls a function that is told instead."""
    return node.op in PLUMBING or (node.op in CALLS and bool(_called(node)))
