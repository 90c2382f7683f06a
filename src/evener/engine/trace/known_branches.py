"""Conditions whose answer is the same in every step: the branch that is taken, in their place.

`keras.ops` asks for ranks and sizes in the graph, as in ``cond(rank(x) == 0, times, tensordot)``.
What such a condition keeps for its gradient is then a tensor like any other::

    kept = cond(.., some(y), none)  ..  cond(.., get(kept), ..)   ->   y
"""

from __future__ import annotations

from evener.graph.nodes import Graph, Node, Tensor
from evener.ops.values import truth_of


def take_known_branches(graph: Graph) -> bool:
    """Put nodes of branches in place of their conditions; return whether there was one.

    Args:
        graph: The step, or a body, with shapes and numbers; those behind a condition that is
            replaced have to be found again.
    """
    instead: dict[Tensor, Tensor] = {}
    nodes: list[Node] = []
    found = False
    for node in graph.nodes:
        node.inputs = [instead.get(t, t) for t in node.inputs]
        known = truth_of(node.inputs[0]) if "then_branch" in node.bodies else None
        if known is not None:
            found = True
            nodes.extend(_branch(node, "then_branch" if known else "else_branch", instead))
            continue
        value = _kept(node)
        if value is not None:
            instead[node.outputs[0]] = value
            continue
        nodes.append(node)
    graph.nodes[:] = nodes
    graph.outputs = [instead.get(t, t) for t in graph.outputs]
    return found


def _branch(node: Node, name: str, instead: dict[Tensor, Tensor]) -> list[Node]:
    """Return the nodes of a branch, with the inputs of the condition for its arguments."""
    body = node.bodies[name]
    given = dict(zip(body.inputs, node.inputs[1:], strict=True))
    arguments = {tensor.node for tensor in body.inputs}
    nodes: list[Node] = []
    for inner in body:
        if inner in arguments:
            continue
        inner.inputs = [given.get(t, t) for t in inner.inputs]
        inner.name = f"{node.name}/{inner.name}"
        value = _kept(inner)
        if value is None:
            nodes.append(inner)
        else:
            given[inner.outputs[0]] = value
    results = [given.get(tensor, tensor) for tensor in body.outputs]
    instead |= dict(zip(node.outputs, results, strict=True))
    return nodes


def _kept(node: Node) -> Tensor | None:
    """Return the tensor that a node takes out of an optional; None if that is not known."""
    if node.op != "OptionalGetValue" or len(node.outputs) != 1:
        return None
    source = node.inputs[0].node
    while source.op == "Identity":
        source = source.inputs[0].node
    is_there = source.op == "OptionalFromValue" and len(source.inputs) == 1
    return source.inputs[0] if is_there else None
