"""Passes of a training step: forward, backward, and the gradients of weights alone.

::

    forward     x ── layer ──► y
    backward    gradient of y ──► gradient of x, which another stage may wait for
    weights     gradient of y ──► gradient of the weights, which no other stage waits for
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evener.engine.pipeline.layout import Stages
from evener.engine.pipeline.scopes import is_gradient
from evener.graph.nodes import Node
from evener.ops.decision import Sharding

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"


def find_passes(nodes: Sequence[Node], sharding: Sharding) -> dict[Node, str]:
    """Return the pass of every node that the parts compute: forward or backward.

    Args:
        nodes: Nodes in an order in which they can run.
        sharding: Nodes that the parts compute.
    """
    passes: dict[Node, str] = {}
    for node in nodes:
        if node in sharding.decisions:
            # Loops of the forward pass fill the lists that their gradients name.
            of_tape = node.op != "EmptyTensorList" and is_gradient(node)
            after = any(passes.get(tensor.node) == BACKWARD for tensor in node.inputs)
            passes[node] = BACKWARD if of_tape or after else FORWARD
    return passes


def separate_weights(
    nodes: Sequence[Node], passes: Mapping[Node, str], stages: Mapping[Node, Stages]
) -> dict[Node, str]:
    """Return the passes with the nodes of the backward pass that no other stage waits for apart.

    Args:
        nodes: Nodes in an order in which they can run.
        passes: Passes of the nodes that the parts compute.
        stages: Stages of the same nodes.
    """
    awaited: set[Node] = set()
    for node in reversed(nodes):
        if node in passes:
            for tensor in node.inputs:
                before = tensor.node
                if before in passes and (node in awaited or stages[before] != stages[node]):
                    awaited.add(before)
    return {
        node: WEIGHTS if name == BACKWARD and node not in awaited else name
        for node, name in passes.items()
    }
