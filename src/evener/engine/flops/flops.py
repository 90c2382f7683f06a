"""Floating-point operations of nodes, for each sample.

Exact for products of matrices, convolutions and contractions; of a loop, its body times its
iterations; arithmetic counts the elements of its results, and what only moves data nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from evener.engine.flops.loops import num_iterations
from evener.engine.trace.functional import LOOPS
from evener.graph.counts import num_elements
from evener.graph.nodes import Node
from evener.ops.registry import FREE, has_trait, operation

_FEW, _MANY = 32, 64


def flops_per_sample(nodes: Iterable[Node]) -> float:
    """Return how many floating-point operations nodes take for each sample."""
    nodes = list(nodes)
    return (_flops(nodes, _MANY) - _flops(nodes, _FEW)) / (_MANY - _FEW)


def _flops(nodes: Iterable[Node], num_samples: int) -> float:
    return sum(node_flops(node, num_samples) for node in nodes)


def node_flops(node: Node, num_samples: int) -> float:
    """Return how many floating-point operations a node takes for a number of samples."""
    if has_trait(node, FREE) or not node.outputs:
        return 0
    if node.op in LOOPS and "body" in node.bodies:
        return num_iterations(node) * _flops(node.bodies["body"], num_samples)
    if node.bodies:
        return max(_flops(body, num_samples) for body in node.bodies.values())
    count = operation(node.op).flops
    if count is not None and all(t.shape is not None for t in (*node.inputs, *node.outputs)):
        return count(node, num_samples)
    return sum(num_elements(tensor, num_samples) for tensor in node.outputs)
