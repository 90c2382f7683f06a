"""Loops and conditions: their bodies as graphs, with the reads of variables taken out.

A loop that reads a variable in its body has the variable's handle among its inputs, and would have
to run on the variable's device. A variable that no body writes has the same value all the time, so
it is read once before the loop, and the value is given to it::

    while(..., handle):  ... read(handle) ...    ->    value = read(handle)
                                                       while(..., value):  ... value ...

Gathers from a variable become gathers from a read of it: each part gathers for its own samples.

Conditions that update variables are predicated where they can be, see `predication`. Other bodies
that change state stay as they are, and so does the operation that calls them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import tensorflow as tf

from evener._tf_private import graphs
from evener.engine.trace.predication import (
    can_be_predicated,
    constant_beside,
    made_beside,
    predicate,
)
from evener.graph.nodes import Graph, Node, Tensor

LOOPS = frozenset({"While", "StatelessWhile"})
CONDITIONS = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_STATELESS = {"While": "StatelessWhile", "If": "StatelessIf", "Case": "StatelessCase"}
_GATHERS = {"ResourceGather": "GatherV2", "ResourceGatherNd": "GatherNd"}
LARGEST_TABLE = 2**24
"""Bytes of a variable above which its owner gathers, and sends the rows; in loops the parts do."""


def open_functions(graph: Graph, *, is_body: bool = False) -> None:
    """Give every loop and condition without side effects the graphs of its bodies."""
    _gather_from_reads(graph, math.inf if is_body else LARGEST_TABLE)
    instead: dict[Tensor, Tensor] = {}
    later: dict[Node, frozenset[Node]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node.inputs = [instead.get(t, t) for t in node.inputs]
        if node.op in LOOPS or node.op in CONDITIONS:
            bodies = bodies_of(node, graph)
            for body in bodies.values():
                open_functions(body, is_body=True)
            if all(_only_reads(body, node) for body in bodies.values()):
                node.bodies = bodies
                if node.op in LOOPS:
                    _use_inputs_for_invariants(node, instead)
                reads = list(_take_reads_out(node))
                later[node] = frozenset(reads)
                nodes.extend(reads)
                node.op = _STATELESS.get(node.op, node.op)
            elif can_be_predicated(node, bodies):
                taken_out, results, later[node] = predicate(node, bodies)
                nodes.extend(taken_out)
                instead.update(results)
                continue
        nodes.append(node)
    graph.nodes[:] = nodes
    # What waited for a loop, because the loop read a variable, waits for the read.
    for node in nodes:
        for loop in [before for before in node.after if before in later]:
            node.after = node.after - {loop} | later[loop] | loop.after
    graph.outputs = [instead.get(t, t) for t in graph.outputs]


def _gather_from_reads(graph: Graph, most_bytes: float) -> None:
    """Replace gathers from variables by gathers from reads of them."""
    reads: dict[Node, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        table = None
        if node.op in _GATHERS and node.inputs[0].node.source is not None:
            table = graphs.shape_of_variable(*node.inputs[0].node.source, node.inputs[0].index)
        if table is not None and math.prod(table) * node.outputs[0].dtype.size <= most_bytes:
            dtype = {"dtype": node.attrs["dtype"]}
            handle, indices = node.inputs
            read = made_beside(
                "ReadVariableOp", node, "read", [handle], dtype, like=node.outputs[0], shape=table
            )
            node.inputs = [read.outputs[0], indices]
            attrs = {"Tparams": dtype["dtype"], "Tindices": node.attrs["Tindices"]}
            if node.op == "ResourceGather":
                # The first axis behind those of the batch, where TensorFlow's kernel gathers too.
                axis = constant_beside(node, "axis", node.int_attr("batch_dims"), like=indices)
                attrs |= {"batch_dims": node.attrs["batch_dims"], "Taxis": axis.attrs["dtype"]}
                node.inputs.append(axis.outputs[0])
                nodes.append(axis)
            node.op, node.attrs, reads[node] = _GATHERS[node.op], attrs, read
            nodes.append(read)
        nodes.append(node)
    graph.nodes[:] = nodes
    # What waits for a gather, such as a write of the variable, waits for the read.
    for node in nodes if reads else ():
        node.after = frozenset(reads.get(before, before) for before in node.after)


def bodies_of(node: Node, graph: Graph) -> dict[str, Graph]:
    """Return the bodies of a loop or condition, read anew, by attribute."""
    return {name: graph.body(function) for name, function in _functions(node)}


def num_leading(node: Node) -> int:
    """Return how many inputs come before the arguments of the bodies."""
    return 1 if node.op in CONDITIONS else 0


def _functions(node: Node) -> Iterator[tuple[str, str]]:
    if node.op in LOOPS:
        names = ("cond", "body")
    elif "then_branch" in node.attrs:
        names = ("then_branch", "else_branch")
    else:
        for index, function in enumerate(node.attrs["branches"].list.func):
            yield f"branch_{index}", function.name
        return
    for name in names:
        yield name, node.function_attr(name)


def _only_reads(body: Graph, node: Node) -> bool:
    """Return whether all state of a body is variables that it is given and only reads."""
    handles = [t for t in body.inputs if t.dtype == tf.resource]
    if node.op in LOOPS and len(body.outputs) == len(body.inputs):
        pairs = zip(body.inputs, body.outputs, strict=True)
        handles = [t for t, after in pairs if t.dtype == tf.resource and t is after]
    reads = {read for handle in handles for read in _reads_of(handle, body) or ()}
    arguments = {tensor.node for tensor in body.inputs}
    return all(
        node in reads or node in arguments or node.bodies or not node.is_stateful for node in body
    )


def _use_inputs_for_invariants(node: Node, instead: dict[Tensor, Tensor]) -> None:
    """Results that a loop hands through unchanged are what it was given."""
    body = node.bodies["body"]
    for index, tensor in enumerate(node.outputs):
        if tensor.dtype == tf.resource and body.outputs[index] is body.inputs[index]:
            instead[tensor] = node.inputs[index]


def _take_reads_out(node: Node) -> Iterator[Node]:
    """Change handles among the inputs into values; yield the reads, for before the operation."""
    first = num_leading(node)
    for index in range(first, len(node.inputs)):
        handle = node.inputs[index]
        if handle.dtype != tf.resource:
            continue
        reads = [_reads_of(body.inputs[index - first], body) for body in node.bodies.values()]
        found = [nodes for nodes in reads if nodes is not None]
        if len(found) < len(reads) or not any(found):
            continue
        dtypes = {read.outputs[0].dtype for nodes in found for read in nodes}
        if len(dtypes) != 1:
            continue
        sample = next(read for nodes in found for read in nodes)
        yield _give_value(node, index, sample, found)


def _reads_of(handle: Tensor, body: Graph) -> list[Node] | None:
    """Return the reads of a handle in a body, or None if it is used in another way."""
    users = [node for node in body if handle in node.inputs]
    if any(user.op != "ReadVariableOp" for user in users):
        return None
    positions = [k for k, tensor in enumerate(body.inputs) if tensor is handle]
    if any(t is handle for k, t in enumerate(body.outputs) if k not in positions):
        return None
    return users


def _give_value(node: Node, index: int, sample: Node, reads: list[list[Node]]) -> Node:
    handle, first = node.inputs[index], num_leading(node)
    result, shape = sample.outputs[0], sample.static_shapes[0]
    read = made_beside(
        "ReadVariableOp", node, f"read_{index}", [handle], sample.attrs, like=result, shape=shape
    )
    node.inputs[index] = read.outputs[0]
    if node.op in LOOPS:
        node.outputs[index].dtype = sample.outputs[0].dtype
    for body, found in zip(node.bodies.values(), reads, strict=True):
        argument = body.inputs[index - first]
        argument.dtype = sample.outputs[0].dtype
        argument.node.static_shapes = sample.static_shapes
        replaced = {read.outputs[0]: argument for read in found}
        body.nodes[:] = [node for node in body.nodes if node not in found]
        for other in body.nodes:
            other.inputs = [replaced.get(t, t) for t in other.inputs]
            other.after = frozenset(n for n in other.after if n not in found)
        body.outputs = [replaced.get(t, t) for t in body.outputs]
    if node.op in LOOPS:
        shapes = list(node.static_shapes)
        shapes[index] = sample.static_shapes[0]
        node.static_shapes = tuple(shapes)
    return read
