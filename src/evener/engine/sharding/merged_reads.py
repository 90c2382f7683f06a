"""Reads of one variable between two writes are one read, so that its value travels once."""

from __future__ import annotations

from evener.graph.nodes import Graph, Node, Tensor


def merge_reads(graph: Graph) -> None:
    """Let all users of equal reads use the first of them."""
    first: dict[object, Node] = {}
    instead: dict[Tensor, Tensor] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node.inputs = [instead.get(t, t) for t in node.inputs]
        if node.op == "ReadVariableOp":
            writes = frozenset(n for n in node.after if n.has_side_effect)
            key = (node.inputs[0], writes, node.device)
            known = first.setdefault(key, node)
            if known is not node:
                instead[node.outputs[0]] = known.outputs[0]
                _keep_order(node, known)
                continue
        kept.append(node)
    graph.nodes[:] = kept
    graph.outputs = [instead.get(t, t) for t in graph.outputs]
    replaced = {old.node: new.node for old, new in instead.items()}
    for node in graph.nodes:
        if any(one in replaced for one in node.after):
            node.after = frozenset(replaced.get(one, one) for one in node.after)


def _keep_order(node: Node, known: Node) -> None:
    known.after = known.after | {n for n in node.after if not n.has_side_effect}
