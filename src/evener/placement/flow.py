"""The nodes of a placed graph, what flows between them, and what they work for.

    forward    everything that is none of the others
    gradient   what a tape or `tf.gradients` made, and what only looks at gradients
    optimizer  between the gradients and the variables: from the last gradient operation to
               the writes that depend on one, with all that is read for it (slots, rates),
               unless a gradient needs it too; and what an optimizer's ``apply`` made
    input      iterators and datasets, and what takes their elements apart

Gradient work is told by where an operation was made (beneath a tape, in a backward function),
optimizer work by the graph: names play no part in either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evener.placement.origins import Origins
from evener.placement.parts import Kind

# What only carries tensors in and out of functions and devices.
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
    """Nodes and the data that flows between them, without the way back of loops.

    Args:
        nodes: The nodes, by name.
        inputs: The names of the nodes whose data a node takes.
        outputs: The names of the nodes that take its data.
    """

    nodes: Mapping[str, Any]
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def before(self, names: Iterable[str], *, stop: frozenset[str] = frozenset()) -> set[str]:
        """Return the nodes that these need, themselves left out; not beyond ``stop``."""
        return _reached(names, self.inputs, stop)

    def after(self, names: Iterable[str]) -> set[str]:
        """Return the nodes that need one of these, themselves left out."""
        return _reached(names, self.outputs, frozenset())


def flow_of(nodes: Iterable[Any]) -> Flow:
    """Return the flow between the nodes of a ``GraphDef`` or a ``FunctionDef``."""
    by_name = {node.name: node for node in nodes}
    inputs: dict[str, tuple[str, ...]] = {}
    outputs: dict[str, list[str]] = {name: [] for name in by_name}
    for name, node in by_name.items():
        taken = dict.fromkeys(one.partition(":")[0] for one in node.input if one[:1] != "^")
        taken.update(dict.fromkeys(_written_before(node, by_name)))
        inputs[name] = tuple(
            one for one in taken if one in by_name and by_name[one].op != "NextIteration"
        )
        for one in inputs[name]:
            outputs[one].append(name)
    return Flow(
        nodes=by_name,
        inputs=inputs,
        outputs={name: tuple(takers) for name, takers in outputs.items()},
    )


def kinds_of(flow: Flow, origins: Origins, function: str | None = None) -> dict[str, Kind]:
    """Return what every node works for.

    Args:
        flow: The nodes, as they are written: where TensorFlow has optimized them, forward and
            gradient work may share a node.
        origins: Where they come from.
        function: The function they are in, if it was not taken apart.
    """
    made = {name: origins.of(node, function) for name, node in flow.nodes.items()}
    gradient = {n for n, op in made.items() if op is not None and origins.is_of_a_tape(op)}
    _join_unknown(flow, made, gradient)
    optimizer = _optimizer(flow, gradient)
    optimizer |= {
        n
        for n, op in made.items()
        if op is not None and n not in gradient and origins.is_of_an_optimizer(op)
    }
    needed = flow.before(gradient)
    # Gradients that are looked at only, as for their norm.
    gradient |= flow.after(gradient) - needed - optimizer
    kinds: dict[str, Kind] = dict.fromkeys(flow.nodes, "forward")
    kinds |= dict.fromkeys(gradient, "gradient")
    kinds |= dict.fromkeys(_input(flow), "input")
    kinds |= dict.fromkeys(optimizer, "optimizer")
    return kinds


def kinds_after(
    flow: Flow, written: Flow, kinds: Mapping[str, Kind], origins: Origins
) -> dict[str, Kind]:
    """Return what the nodes work for that TensorFlow has made of others.

    Args:
        flow: The nodes after.
        written: The nodes before.
        kinds: What these work for.
        origins: Where both come from.
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
        takers: set[Kind] = {found.get(taker, "forward") for taker in flow.outputs[name]}
        found[name] = takers.pop() if len(takers) == 1 else "forward"
    return found


def in_loops(flow: Flow) -> set[str]:
    """Return the nodes that run once for each iteration of a loop."""
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
    """Return the writes of the variable that a node reads, which it waits for."""
    if node.op != "ReadVariableOp":
        return []
    earlier = [by_name.get(one[1:]) for one in node.input if one.startswith("^")]
    return [
        one.name
        for one in earlier
        if one is not None and writes_variables(one.op) and one.input[0] == node.input[0]
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
    """Count nodes that TensorFlow added among gradients, if all that take their data are."""
    unknown = [name for name, op in made.items() if op is None]
    # From the end, so that one of them can follow another.
    for name in reversed(unknown):
        takers = flow.outputs[name]
        if takers and all(taker in gradient for taker in takers):
            gradient.add(name)


def _reached(
    names: Iterable[str], ways: Mapping[str, tuple[str, ...]], stop: frozenset[str]
) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        for name in ways[waiting.pop()]:
            if name not in found and name not in stop:
                found.add(name)
                waiting.append(name)
    return found
