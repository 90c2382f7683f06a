"""The dataflow between the nodes of a placed graph, and the kind of work of every node.

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

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evener.auditing.origins import Origins
from evener.auditing.records import Kind

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
    """Nodes and the dataflow between them, without the back edges of loops.

    Args:
        nodes: The nodes, by name.
        inputs: Names of the producers of each node.
        outputs: Names of the consumers of each node.
    """

    nodes: Mapping[str, Any]
    inputs: Mapping[str, tuple[str, ...]]
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
    """Return the kind of work of every node.

    Args:
        flow: The nodes before optimization: in an optimized graph, forward and gradient work may
            share a node.
        origins: The Python operations behind the nodes.
        function: The function that contains them, if it was not inlined.
    """
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
    """Return the kind of work of every node of the optimized graph.

    Args:
        flow: The nodes after optimization.
        written: The nodes before optimization.
        kinds: The kind of work of the nodes before optimization.
        origins: The Python operations behind both.
    """
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
