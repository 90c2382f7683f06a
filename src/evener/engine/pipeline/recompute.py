"""Activations that are computed again in the backward pass, instead of being kept.

::

    forward     x ── layer ──> y          only x is kept
    backward    x ── layer again ──> gradient of the layer
                         ^ once the gradient of y is there

What draws or keeps state is never run twice: its results are kept. A layer waits for the gradient
that comes to it, so that one layer's activations are there at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from evener.engine.pipeline.layout import Layout, Stages
from evener.engine.pipeline.stages import BACKWARD, FORWARD, Scopes
from evener.graph.nodes import Node, Tensor
from evener.ops.decision import Sharding


def recompute(
    nodes: Sequence[Node],
    sharding: Sharding,
    layout: Layout,
    scopes: Scopes,
    stages: dict[Node, Stages],
    passes: dict[Node, str],
) -> tuple[list[Node], dict[Node, tuple[Tensor, ...]]]:
    """Let the backward pass compute layers again.

    Args:
        nodes: In an order in which they can run. Those of the backward pass read copies then.
        sharding: What the parts compute; the copies are entered.
        layout: Says which layers.
        scopes: The layers of the nodes.
        stages: Of the nodes; the copies are entered.
        passes: Of the nodes; the copies are entered.

    Returns:
        All nodes, with the copies; and for every copy what it waits for.
    """
    regions: dict[Node, str] = {}
    for node in nodes:
        if passes.get(node) == FORWARD and not node.is_stateful:
            region = scopes.region(node, layout.recompute)
            if region:
                regions[node] = region
    copies: dict[tuple[Node, Stages], Node] = {}
    gates: dict[tuple[str, Stages], tuple[Tensor, ...]] = {}
    waits: dict[Node, tuple[Tensor, ...]] = {}
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
            waits[copies[node, to]] = gates[regions[node], to]
            result.append(copies[node, to])
        return copies[node, to].outputs[tensor.index]

    for node in nodes:
        if passes.get(node, FORWARD) != FORWARD:
            # Only by the stage that has computed it: what comes from another one is kept here.
            mine = [t for t in node.inputs if stages.get(t.node) == stages.get(node)]
            arrived = tuple(t for t in node.inputs if passes.get(t.node) == BACKWARD)
            for tensor in mine:
                if tensor.node in regions:
                    # The first that needs the layer: what comes to it cannot come from the layer.
                    gates.setdefault((regions[tensor.node], stages[node]), arrived)
            node.inputs = [again(t, stages[node]) if t in mine else t for t in node.inputs]
        result.append(node)
    return result, waits


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
    copy.row_loop = node.row_loop
    sharding.decisions[copy] = sharding.decisions[node]
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.shape, new.value, new.is_sizes = old.shape, old.value, old.is_sizes
        sharding.states[new] = sharding.states[old]
    return copy
