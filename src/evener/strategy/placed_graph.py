"""Reads a placed graph: its operations, copies between devices, collectives and fallbacks.

Every node has a Python operation with a source line (origins), a kind of work (dataflow) and sizes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from evener._tf_private.functions import definition_frames
from evener._tf_private.graphs import copy_handle_data
from evener.auditing import Collective, Copy, Fallback, Kind, Line, Operation
from evener.base.user_code import is_own
from evener.devices.names import GPU, kind_of, qualified_name
from evener.strategy import kernels
from evener.strategy.dry_run import Placed

# Devices of an audit: those that exist, and those that operations request.

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
    """Return the logical devices of TensorFlow, GPUs first."""
    names = {qualified_name(device.name) or "" for device in tf.config.list_logical_devices()}
    return tuple(sorted(names, key=lambda name: (not is_gpu(name), _number(name))))


def _number(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition(":")
    return kind, int(number or 0)


# The Python operation behind each node of a placed graph, and the source line that made it.
#
# TensorFlow inlines the functions that a step calls into one graph and optimizes it. A node records
# the function and the name it had there; nodes that TensorFlow adds (the switches of a condition,
# folded constants) do not.

_TAPES = (
    ("tensorflow/python/eager/imperative_grad.py", "imperative_grad"),
    ("tensorflow/python/ops/gradients_util.py", "_GradientsHelper"),
)
_OPTIMIZERS = ("keras/src/optimizers/", "keras/src/backend/tensorflow/optimizer")
_LOWERED = ("If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase")
# Frames outside of it belong to the call of the audit.
_AUDIT = str(Path(__file__).with_name("step_audit.py"))
_APPLIES = ("apply", "apply_gradients")


class Origins:
    """Finds the Python operations behind the nodes of one placed graph."""

    def __init__(self, functions: dict[str, tf.Graph], name: str) -> None:
        self._functions = functions
        self._name = name
        self._frames: dict[tf.Operation, list[tuple[str, int, str]]] = {}

    def of(self, node: Any, function: str | None = None) -> tf.Operation | None:
        """Return the Python operation behind a node, or None."""
        debug = node.experimental_debug_info
        if function is None and debug.original_func_names:
            return self._find(debug.original_func_names[-1], debug.original_node_names[-1])
        return self._find(function or self._name, node.name) or self._lowered(node.name)

    def _lowered(self, name: str) -> tf.Operation | None:
        """Return the condition or loop that a node was lowered from, or None."""
        while "/" in name:
            name = name.rpartition("/")[0]
            operation = self._find(self._name, name)
            if operation is not None:
                return operation if operation.type in _LOWERED else None
        return None

    def _find(self, function: str, name: str) -> tf.Operation | None:
        graph = self._functions.get(function)
        if graph is None:
            return None
        try:
            return graph.get_operation_by_name(name)
        except (KeyError, ValueError):
            # Grappler added it.
            return None

    def frames(self, operation: tf.Operation) -> list[tuple[str, int, str]]:
        """Return the stack frames in which an operation was made: file, line, function."""
        if operation not in self._frames:
            self._frames[operation] = definition_frames(operation)
        return self._frames[operation]

    def line(self, operation: tf.Operation | None) -> Line | None:
        """Return the innermost line of user code that made an operation, or None."""
        if operation is None or operation.type == "Placeholder":
            return None
        for file, number, _ in reversed(self.frames(operation)):
            if file == _AUDIT:
                return None
            if is_own(file):
                return Line(path=file, number=number)
        return None

    def is_made_by_tape(self, operation: tf.Operation) -> bool:
        """Return whether a tape or `tf.gradients` made an operation."""
        return any(
            function == tape and file.endswith(where)
            for file, _, function in self.frames(operation)
            for where, tape in _TAPES
        )

    def is_made_by_optimizer(self, operation: tf.Operation) -> bool:
        """Return whether the ``apply`` of a Keras optimizer made an operation."""
        return any(
            function in _APPLIES and any(part in file for part in _OPTIMIZERS)
            for file, _, function in self.frames(operation)
        )


# The dataflow between the nodes of a placed graph, and the kind of work of every node.
#
#     forward    every node that is none of the others
#     gradient   operations made by a tape or `tf.gradients`, and those that only read gradients
#     optimizer  between the gradients and the variables: from the last gradient operation to
#                the writes that depend on one, with all their other inputs (slots, learning
#                rates), unless a gradient needs them too; and operations made by an optimizer's
#                ``apply``
#     input      iterators and datasets, and operations that unpack their elements
#
# Gradient operations are identified by the stack that made them (in a tape, in a backward
# function),
# optimizer operations by the graph; names are not used.

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
    inputs: Mapping[str, tuple[str, ...]]  # Names of the producers of each node
    # Names of the consumers of each node
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def before(self, names: Iterable[str], *, stop: frozenset[str] = frozenset()) -> set[str]:
        """Return all transitive producers of some nodes, without the nodes, up to ``stop``."""
        return _reached(names, self.inputs, stop)

    def after(self, names: Iterable[str]) -> set[str]:
        """Return all transitive consumers of some nodes, without the nodes."""
        return _reached(names, self.outputs, frozenset())


def flow_of(nodes: Iterable[Any]) -> Flow:
    """Return the dataflow between the nodes of a ``GraphDef`` or a ``FunctionDef``."""
    by_name = {node.name: node for node in nodes}
    inputs: dict[str, tuple[str, ...]] = {}
    outputs: dict[str, list[str]] = {name: [] for name in by_name}
    for name, node in by_name.items():
        taken = dict.fromkeys(
            tensor.partition(":")[0] for tensor in node.input if tensor[:1] != "^"
        )
        taken.update(dict.fromkeys(_written_before(node, by_name)))
        inputs[name] = tuple(
            producer
            for producer in taken
            if producer in by_name and by_name[producer].op != "NextIteration"
        )
        for producer in inputs[name]:
            outputs[producer].append(name)
    return Flow(
        nodes=by_name,
        inputs=inputs,
        outputs={name: tuple(consumers) for name, consumers in outputs.items()},
    )


def kinds_of(flow: Flow, origins: Origins, function: str | None = None) -> dict[str, Kind]:
    """Return the kind of work of every node."""
    made = {name: origins.of(node, function) for name, node in flow.nodes.items()}
    gradient = {n for n, op in made.items() if op is not None and origins.is_made_by_tape(op)}
    _join_unknown(flow, made, gradient)
    optimizer = _optimizer(flow, gradient)
    optimizer |= {
        n
        for n, op in made.items()
        if op is not None and n not in gradient and origins.is_made_by_optimizer(op)
    }
    needed = flow.before(gradient)
    # Gradients that are only read, as for their norm.
    gradient |= flow.after(gradient) - needed - optimizer
    kinds: dict[str, Kind] = dict.fromkeys(flow.nodes, "forward")
    kinds |= dict.fromkeys(gradient, "gradient")
    kinds |= dict.fromkeys(_input(flow), "input")
    kinds |= dict.fromkeys(optimizer, "optimizer")
    return kinds


def kinds_after(
    flow: Flow, written: Flow, kinds: Mapping[str, Kind], origins: Origins
) -> dict[str, Kind]:
    """Return the kind of work of every node of the optimized graph."""
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


def in_loops(flow: Flow) -> set[str]:
    """Return the nodes that run in every iteration of a loop."""
    enters = [name for name, node in flow.nodes.items() if node.op == "Enter"]
    exits = frozenset(name for name, node in flow.nodes.items() if node.op == "Exit")
    inside = _reached(enters, flow.outputs, exits)
    return {*enters, *inside} - exits


def is_data(op_type: str) -> bool:
    """Return whether a type of operation is one of `tf.data`."""
    return bool(_DATA.fullmatch(op_type))


def writes_variables(op_type: str) -> bool:
    """Return whether a type of operation writes a variable.

    >>> writes_variables("AssignSubVariableOp"), writes_variables("MatMul")
    (True, False)
    """
    return bool(_WRITES.fullmatch(op_type))


def _written_before(node: Any, by_name: Mapping[str, Any]) -> list[str]:
    """Return the writes of a variable on which a read of it has a control dependency."""
    if node.op != "ReadVariableOp":
        return []
    earlier_nodes = [by_name.get(control[1:]) for control in node.input if control.startswith("^")]
    return [
        earlier.name
        for earlier in earlier_nodes
        if earlier is not None
        and writes_variables(earlier.op)
        and earlier.input[0] == node.input[0]
    ]


def _optimizer(flow: Flow, gradient: set[str]) -> set[str]:
    after = flow.after(gradient) - gradient
    needed = flow.before(gradient)
    writes = {n for n in after - needed if writes_variables(flow.nodes[n].op)}
    leading = flow.before(writes, stop=frozenset(gradient))
    handles = {n for n in leading if flow.nodes[n].op in PLUMBING}
    return (writes | leading) - gradient - needed - handles


def _input(flow: Flow) -> set[str]:
    data = {name for name, node in flow.nodes.items() if is_data(node.op)}
    waiting = list(data)
    while waiting:
        for name in flow.outputs[waiting.pop()]:
            if name not in data and flow.nodes[name].op in _OPTIONALS:
                data.add(name)
                waiting.append(name)
    return data


def _join_unknown(flow: Flow, made: Mapping[str, Any], gradient: set[str]) -> None:
    """Add nodes that TensorFlow added to the gradients, if all their consumers are gradients."""
    unknown = [name for name, op in made.items() if op is None]
    # In reverse, so that one of them can follow another.
    for name in reversed(unknown):
        consumers = flow.outputs[name]
        if consumers and all(consumer in gradient for consumer in consumers):
            gradient.add(name)


def _reached(
    names: Iterable[str], edges: Mapping[str, tuple[str, ...]], stop: frozenset[str]
) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        for name in edges[waiting.pop()]:
            if name not in found and name not in stop:
                found.add(name)
                waiting.append(name)
    return found


# The sizes of the tensors of a placed graph, for the inputs for which it was placed.

_ARGUMENTS = ("_Arg", "_DeviceArg")


class TensorSizes:
    """The bytes of the tensors of one placed graph.

    TensorFlow's shape functions infer them from the shapes of the inputs. The size of a tensor
    whose shape depends on values is unknown before the step runs.
    """

    def __init__(
        self, graph: Any, inputs: Sequence[Any], drawn: Mapping[str, Sequence[Any]]
    ) -> None:
        self._arguments = {
            node.name: inputs[node.attr["index"].i]
            for node in graph.node
            if node.op in _ARGUMENTS and node.attr["index"].i < len(inputs)
        }
        known = {f"{name}:0": tensor for name, tensor in self._arguments.items()}
        known |= {f"{n}:{i}": t for n, tensors in drawn.items() for i, t in enumerate(tensors)}
        self._outputs: dict[str, Sequence[Any]] = {**_inferred(graph, known), **drawn}

    def num_bytes(self, tensor: str) -> int | None:
        """Return the bytes of a tensor, or None if they are unknown."""
        name, _, index = tensor.partition(":")
        if name in self._arguments:
            return num_bytes_of(self._arguments[name])
        outputs = self._outputs.get(name, ())
        number = int(index or 0)
        return num_bytes_of(outputs[number]) if number < len(outputs) else None


def num_bytes_of(tensor: Any) -> int | None:
    """Return the bytes of a tensor, or None if its shape or the size of its dtype is unknown."""
    shape = tensor.shape
    if not tensor.dtype.size or shape.rank is None or not shape.is_fully_defined():
        return None
    return math.prod(shape.as_list()) * tensor.dtype.size


def _inferred(graph: Any, known: Mapping[str, Any]) -> dict[str, list[tf.Tensor]]:
    """Return the outputs of every node of a placed graph, with inferred shapes."""
    plain = tf.compat.v1.GraphDef()
    plain.versions.CopyFrom(graph.versions)
    plain.library.CopyFrom(graph.library)
    for node in graph.node:
        if node.op not in PLUMBING:
            plain.node.add().CopyFrom(_bare(node))
    inferring = tf.Graph()
    with inferring.as_default():
        given = {name: _placeholder(tensor) for name, tensor in known.items()}
        used = {tensor for node in plain.node for tensor in node.input}
        needed = {n: t for n, t in given.items() if n in used or n.removesuffix(":0") in used}
        try:
            tf.graph_util.import_graph_def(plain, name="", input_map=needed)
        except ValueError:
            # Not every placed graph can be imported again; then sizes are unknown.
            return {}
    return {op.name: list(op.outputs) for op in inferring.get_operations()}


def _bare(node: Any) -> Any:
    """Return a node without its device, control inputs and private attributes."""
    bare = type(node)()
    bare.CopyFrom(node)
    bare.device = ""
    for name in [name for name in bare.attr if name.startswith("_")]:
        del bare.attr[name]
    data = [tensor for tensor in node.input if not tensor.startswith("^")]
    del bare.input[:]
    bare.input.extend(data)
    return bare


def _placeholder(tensor: Any) -> tf.Tensor:
    placeholder = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
    if tensor.dtype == tf.resource:
        copy_handle_data(tensor, placeholder)
    return placeholder


# Reads a placed graph: its operations, copies between devices, collectives and fallbacks.

_COLLECTIVE = re.compile(
    r"Collective(Reduce|Gather|BcastSend|BcastRecv|AllToAll|ReduceScatter)\w*|Nccl\w+"
)
# These carry, name or describe tensors: it does not matter that they are not on the GPU.
_NO_WORK = frozenset(
    "Const Identity IdentityN Shape ShapeN Rank Size VariableShape Placeholder VarHandleOp "
    "StopGradient PreventGradient Assert ControlTrigger "
    "Switch Merge Enter Exit NextIteration LoopCond".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacedOperation:
    """An operation with its node in the placed graph and the Python operation behind it."""

    operation: Operation
    node: Any
    made: tf.Operation | None


class GraphReader:
    """Reads one placed graph."""

    def __init__(
        self,
        placed: Placed,
        assume_gpus: bool,
        drawn: Mapping[str, Sequence[Any]],
    ) -> None:
        self._placed = placed
        self._assume_gpus = assume_gpus
        self._origins = Origins(placed.functions, placed.name)
        self._flow = flow_of(placed.graph.node)
        written = flow_of(placed.written.node)
        kinds = kinds_of(written, self._origins)
        self._kinds = kinds_after(self._flow, written, kinds, self._origins)
        self._library = {
            function.signature.name: function for function in placed.graph.library.function
        }
        self._sizes = TensorSizes(placed.graph, placed.inputs, drawn)
        self._present = present()
        self._placed_operations = [*self._inlined(), *self._in_functions()]

    def operations(self) -> tuple[Operation, ...]:
        """Return all operations, including those of functions that are not inlined."""
        return tuple(placed.operation for placed in self._placed_operations)

    def copies(self) -> tuple[Copy, ...]:
        """Return all tensors that are copied from one device to another."""
        looped = in_loops(self._flow)
        return tuple(
            self._copy(node, looped)
            for part in self._placed.parts
            for node in part.node
            if node.op == "_Send" and _carries_data(node)
        )

    def collectives(self) -> tuple[Collective, ...]:
        """Return the collective operations, one for each participating device."""
        return tuple(
            Collective(
                operation=name,
                type=node.op,
                device=qualified_name(node.device) or "",
                num_bytes=self._sizes.num_bytes(name),
                line=self._line(name),
            )
            for name, node in self._flow.nodes.items()
            if _COLLECTIVE.fullmatch(node.op)
        )

    def fallbacks(self) -> tuple[Fallback, ...]:
        """Return the operations that do not run on their requested GPU."""
        found = map(self._fallback, self._placed_operations)
        return tuple(fallback for fallback in found if fallback is not None)

    def _inlined(self) -> Iterator[_PlacedOperation]:
        for name, node in self._flow.nodes.items():
            if node.op in PLUMBING or (node.op in CALLS and _called(node)):
                continue
            used = qualified_name(node.device) or ""
            yield self._operation(node, used, self._kinds[name], self._origins.of(node), None)

    def _in_functions(self) -> Iterator[_PlacedOperation]:
        """Yield the operations of functions that are not inlined, each once."""
        for name, node in self._flow.nodes.items():
            used = qualified_name(node.device) or ""
            for function in _called(node):
                yield from self._of_function(function, self._kinds[name], used, name, {name})

    def _of_function(
        self, function: str, kind: Kind, used: str, within: str, entered: set[str]
    ) -> Iterator[_PlacedOperation]:
        if function not in self._library or function in entered:
            return
        flow = flow_of(self._library[function].node_def)
        kinds = kinds_of(flow, self._origins, function)
        trains = "gradient" in kinds.values()
        for name, node in flow.nodes.items():
            # A forward operation in there does the kind of work of the call.
            inner_kind = kind if kinds[name] == "forward" and not trains else kinds[name]
            if node.op not in PLUMBING and not (node.op in CALLS and _called(node)):
                made = self._origins.of(node, function)
                yield self._operation(node, used, inner_kind, made, within)
            for inner in _called(node):
                yield from self._of_function(inner, inner_kind, used, within, {*entered, function})

    def _operation(
        self, node: Any, used: str, kind: Kind, made: tf.Operation | None, within: str | None
    ) -> _PlacedOperation:
        operation = Operation(
            name=node.name,
            type=node.op,
            requested=None if made is None else requested(made),
            device=used,
            kind=kind,
            line=self._origins.line(made),
            within=within,
        )
        return _PlacedOperation(operation=operation, node=node, made=made)

    def _copy(self, send: Any, looped: set[str]) -> Copy:
        tensor = send.input[0]
        name = tensor.partition(":")[0]
        target = send.attr["recv_device"].s.decode()
        return Copy(
            tensor=tensor,
            num_bytes=self._num_bytes(tensor),
            source=qualified_name(send.attr["send_device"].s.decode()) or "",
            target=qualified_name(target) or "",
            kind=self._kinds.get(name, "forward"),
            line=self._line(name),
            needed_by=self._needed_by(name, target),
            in_loop=name in looped,
        )

    def _num_bytes(self, tensor: str) -> int | None:
        """Return the size of a tensor; in loops, the Python graph has more static shapes."""
        known = self._sizes.num_bytes(tensor)
        name, _, index = tensor.partition(":")
        node = self._flow.nodes.get(name)
        made = None if node is None else self._origins.of(node)
        if known is not None or node is None or made is None or made.type != node.op:
            return known
        # Fused operations have outputs without a counterpart in Python.
        number = int(index or 0)
        return num_bytes_of(made.outputs[number]) if number < len(made.outputs) else None

    def _line(self, name: str) -> Any:
        node = self._flow.nodes.get(name)
        return None if node is None else self._origins.line(self._origins.of(node))

    def _needed_by(self, name: str, device: str) -> Any:
        consumers = [
            consumer
            for consumer in self._flow.outputs.get(name, ())
            if self._flow.nodes[consumer].device == device
        ]
        return next(
            (line for consumer in consumers if (line := self._line(consumer)) is not None), None
        )

    def _fallback(self, placed: _PlacedOperation) -> Fallback | None:
        operation = placed.operation
        if operation.within is not None or operation.type in _NO_WORK:
            return None
        if operation.kind == "input" and is_data(operation.type):
            return None
        found = self._why_not(placed)
        if found is None:
            return None
        return Fallback(
            operation=operation.name,
            type=operation.type if placed.made is None else placed.made.type,
            requested=operation.requested,
            device=operation.device,
            reason=found.reason,
            why=found.why,
            line=operation.line,
        )

    def _why_not(self, placed: _PlacedOperation) -> kernels.NotOnGpu | None:
        requested, used = placed.operation.requested, placed.operation.device
        if self._assume_gpus if requested is None else is_gpu(requested):
            # Grappler may have replaced it by an operation that only the CPU has.
            op_type, attr = _before_optimization(placed)
            found = kernels.why_not_on_gpu(op_type, _dtypes(attr))
            if found is not None:
                return found
        # Where a CPU device stands in for the requested GPU, `here` is that device.
        here = requested if placed.made is None else qualified_name(placed.made.device)
        if requested is None or used in (requested, here):
            return None
        if requested not in self._present and here not in self._present:
            return (
                None if self._is_assumed(requested) else _no_such_device(requested, self._present)
            )
        return _colocated(requested, used) if is_gpu(requested) and not is_gpu(used) else None

    def _is_assumed(self, requested: str) -> bool:
        """Return whether the requested GPU is one that the audit only assumes to exist."""
        return self._assume_gpus and is_gpu(requested) and not any(map(is_gpu, self._present))


def _called(node: Any) -> list[str]:
    """Return the names of the functions that a node calls."""
    names = []
    for value in node.attr.values():
        if value.HasField("func"):
            names.append(value.func.name)
        names += [function.name for function in value.list.func]
    return names


def _carries_data(send: Any) -> bool:
    """Return whether a node sends a tensor, and not a control dependency."""
    if send.attr["client_terminated"].b:
        return False
    name = send.input[0].partition(":")[0]
    return not (name.startswith("^") or "/ctrl/_" in name)


def _before_optimization(placed: _PlacedOperation) -> tuple[str, Any]:
    if placed.made is None:
        return placed.node.op, placed.node.attr
    return placed.made.type, placed.made.node_def.attr


def _dtypes(attr: Any) -> dict[str, str]:
    return {
        name: tf.dtypes.as_dtype(value.type).name
        for name, value in attr.items()
        if value.HasField("type") and value.type
    }


def _no_such_device(requested: str, present: tuple[str, ...]) -> kernels.NotOnGpu:
    return kernels.NotOnGpu(
        reason="no_such_device",
        why=f"{requested} does not exist; TensorFlow has {', '.join(present)}, and soft placement "
        "used another device",
    )


def _colocated(requested: str, used: str) -> kernels.NotOnGpu:
    return kernels.NotOnGpu(
        reason="beside",
        why=f"{requested} exists; TensorFlow colocated it with a variable or an input on {used}",
    )
