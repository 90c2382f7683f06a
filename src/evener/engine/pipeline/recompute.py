"""Recomputation: the backward pass computes activations of layers anew instead of saving them.

::

    forward     x ── layer ──────────► y                    only x is saved
    backward    x ── copy of layer ──► gradient of the layer
                         ^ gate: the gradient of y

Nodes that draw random numbers or keep state are never copied: their results are saved. A copy
waits for the gradient that its layer receives, so that the activations of a single layer are in
memory at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from evener.engine.pipeline.layout import Stages
from evener.engine.pipeline.passes import BACKWARD, FORWARD
from evener.engine.pipeline.scopes import Scopes
from evener.engine.pipeline.staged_step import StagedStep
from evener.graph.nodes import Node, Tensor
from evener.ops.decision import Sharding


def recompute(staged: StagedStep, scopes: Scopes) -> StagedStep:
    """Return the step with copies of layers, which the nodes of its backward pass read instead.

    Args:
        staged: Step; the inputs of its backward pass are changed, and its sharding gets the copies.
        scopes: Layers of the nodes.
    """
    copies = _Copies(staged, scopes)
    nodes: list[Node] = []
    for node in staged.nodes:
        if staged.passes.get(node, FORWARD) != FORWARD:
            nodes.extend(copies.replace_inputs(node))
        nodes.append(node)
    return dataclasses.replace(
        staged, nodes=nodes, stages=copies.stages, passes=copies.passes, gates=copies.gates
    )


class _Copies:
    """Copies of the nodes of recomputed layers, one for each stage that reads them.

    Args:
        staged: Step without copies.
        scopes: Layers of the nodes.

    Attributes:
        stages: Stages of the nodes and the copies.
        passes: Passes of the nodes and the copies.
        gates: Tensors that each copy waits for without reading them.
    """

    def __init__(self, staged: StagedStep, scopes: Scopes) -> None:
        self._sharding = staged.sharded.sharding
        self._regions: dict[Node, str] = {}
        for node in staged.nodes:
            if staged.passes.get(node) == FORWARD and not node.is_stateful:
                region = scopes.region(node, staged.layout.recompute)
                if region:
                    self._regions[node] = region
        self.stages = dict(staged.stages)
        self.passes = dict(staged.passes)
        self.gates: dict[Node, tuple[Tensor, ...]] = {}
        self._copies: dict[tuple[Node, Stages], Node] = {}
        self._gates_of_regions: dict[tuple[str, Stages], tuple[Tensor, ...]] = {}

    def replace_inputs(self, node: Node) -> list[Node]:
        """Let a node of the backward pass read copies; return the new ones, in order."""
        stage = self.stages[node]
        # A stage recomputes only its own layers: activations of other stages are saved.
        own = [t for t in node.inputs if self.stages.get(t.node) == stage]
        arrived = tuple(t for t in node.inputs if self.passes.get(t.node) == BACKWARD)
        for tensor in own:
            if tensor.node in self._regions:
                # Gate on the first consumer's inputs; they cannot depend on the recomputed layer.
                self._gates_of_regions.setdefault((self._regions[tensor.node], stage), arrived)
        made: list[Node] = []
        node.inputs = [self._copied(t, stage, made) if t in own else t for t in node.inputs]
        return made

    def _copied(self, tensor: Tensor, stage: Stages, made: list[Node]) -> Tensor:
        """Return the copy of a tensor of a recomputed layer; append the nodes that are new."""
        node = tensor.node
        if node not in self._regions:
            return tensor
        region = self._regions[node]
        if (node, stage) not in self._copies:
            inputs = [
                self._copied(t, stage, made) if self._regions.get(t.node) == region else t
                for t in node.inputs
            ]
            copy = self._copies[node, stage] = _copy(node, inputs, self._sharding)
            self.stages[copy], self.passes[copy] = stage, BACKWARD
            self.gates[copy] = self._gates_of_regions[region, stage]
            made.append(copy)
        return self._copies[node, stage].outputs[tensor.index]


def _copy(node: Node, inputs: Sequence[Tensor], sharding: Sharding) -> Node:
    copy = Node(
        f"{node.name}/recompute",
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
