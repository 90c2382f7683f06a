"""Activations that are computed again in the backward pass, instead of being kept.

::

    forward     x ── layer ──> y          only x is kept
    backward    x ── layer again ──> gradient of the layer

What draws or keeps state is never run twice: its results are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from evener.engine.pipeline.layout import Layout, Stages
from evener.engine.pipeline.stages import BACKWARD, FORWARD, Scopes
from evener.engine.sharding.decision import Sharding
from evener.engine.trace.graph import Node, Tensor


def recompute(
    nodes: Sequence[Node],
    sharding: Sharding,
    layout: Layout,
    scopes: Scopes,
    stages: dict[Node, Stages],
    passes: dict[Node, str],
) -> tuple[list[Node], frozenset[Node]]:
    """Let the backward pass compute layers again.

    Args:
        nodes: In an order in which they can run. Those of the backward pass read copies then.
        sharding: What the parts compute; the copies are entered.
        layout: Says which layers.
        scopes: The layers of the nodes.
        stages: Of the nodes; the copies are entered.
        passes: Of the nodes; the copies are entered.

    Returns:
        All nodes, with the copies, and the copies alone.
    """
    regions: dict[Node, str] = {}
    for node in nodes:
        if passes.get(node) == FORWARD and not node.is_stateful:
            region = scopes.region(node, layout.recompute)
            if region:
                regions[node] = region
    copies: dict[tuple[Node, Stages], Node] = {}
    result: list[Node] = []

    def again(tensor: Tensor, to: Stages) -> Tensor:
        node = tensor.node
        if node not in regions:
            return tensor
        if (node, to) not in copies:
            inside = [
                again(t, to) if regions.get(t.node) == regions[node] else t for t in node.inputs
            ]
            copies[node, to] = _copy(node, inside, sharding)
            stages[copies[node, to]] = to
            passes[copies[node, to]] = BACKWARD
            result.append(copies[node, to])
        return copies[node, to].outputs[tensor.index]

    for node in nodes:
        if passes.get(node, FORWARD) != FORWARD:
            # Only by the stage that has computed it: what comes from another one is kept here.
            node.inputs = [
                again(t, stages[node]) if stages.get(t.node) == stages[node] else t
                for t in node.inputs
            ]
        result.append(node)
    return result, frozenset(copies.values())


def _copy(node: Node, inputs: Sequence[Tensor], sharding: Sharding) -> Node:
    copy = Node(
        f"{node.name}/again",
        node.op,
        inputs,
        node.attrs,
        dtypes=[t.dtype for t in node.outputs],
        device=node.device,
        static_shapes=node.static_shapes,
        source=node.source,
        xla=node.xla,
    )
    copy.bodies = node.bodies
    sharding.decisions[copy] = sharding.decisions[node]
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.shape, new.value, new.is_sizes = old.shape, old.value, old.is_sizes
        sharding.states[new] = sharding.states[old]
    return copy
