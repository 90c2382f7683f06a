"""Traced step with the state of every tensor: which tensors the parts split, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from evener.engine.sharding.late_broadcasts import delay_broadcasts
from evener.engine.sharding.merged_reads import merge_reads
from evener.engine.sharding.propagate import propagate
from evener.engine.sharding.reads import requests_of, symbols_read
from evener.engine.trace.inference import Inference
from evener.engine.trace.step import TracedStep
from evener.graph.dims import symbols_of
from evener.graph.nodes import CHECKS, Graph, Node, Tensor
from evener.graph.symbols import SymbolSource
from evener.ops.decision import Sharding
from evener.ops.states import REPLICATED, Numbers, Sharded, State


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedStep:
    """Traced step with the state of every tensor.

    Attributes:
        graph: Nodes of the step.
        inference: Sources of the symbols of sizes.
        sharding: States of all tensors, and what the parts compute.
        nodes: Nodes that side effects, checks or results need, in an order in which they can run;
            without constants.
    """

    graph: Graph
    inference: Inference
    sharding: Sharding
    nodes: Sequence[Node] = ()

    def requests(self, node: Node) -> Iterator[tuple[Tensor, State | Numbers]]:
        """Yield every input of a node with the state that the node needs."""
        return requests_of(self.sharding, node)

    def symbol_sources(self, node: Node) -> Iterator[SymbolSource]:
        """Yield the sizes and elements of other nodes' tensors that a node is given as numbers."""
        symbols = self.inference.symbols
        for name in symbols_read(self.sharding, node, symbols):
            if symbols[name].tensor.node is not node:
                yield symbols[name]


def shard_step(traced: TracedStep, *, splits_rows: bool = False) -> ShardedStep:
    """Find the state of every tensor of a step; equal reads of its variables become one.

    Args:
        traced: Step.
        splits_rows: Whether costly operations split the rows of inputs that are computed once.
    """
    graph = traced.graph
    merge_reads(graph)
    delay_broadcasts(graph)
    num_arguments = len(traced.batch_axes)
    states = {
        tensor: Sharded(axis)
        for tensor, axis in zip(graph.inputs, traced.batch_axes, strict=False)
        if axis is not None
    }
    given = graph.inputs[:num_arguments] if splits_rows else None
    sharding = propagate(graph, states, traced.inference.symbols, given=given)
    step = ShardedStep(graph=graph, inference=traced.inference, sharding=sharding)
    return dataclasses.replace(step, nodes=_needed_nodes(step))


def _needed_nodes(step: ShardedStep) -> list[Node]:
    needed: set[Node] = set()
    arguments = {tensor.node for tensor in step.graph.inputs}
    stack = [node for node in step.graph if node.has_side_effect or node.op in CHECKS]
    stack.extend(_makers(step, [(tensor, REPLICATED) for tensor in step.graph.outputs]))
    while stack:
        node = stack.pop()
        if node in needed or node in arguments:
            continue
        needed.add(node)
        stack.extend(_makers(step, step.requests(node)))
        stack.extend(source.tensor.node for source in step.symbol_sources(node))
    return [node for node in step.graph if node in needed and node.op != "Const"]


def _makers(
    step: ShardedStep, requests: Iterable[tuple[Tensor, State | Numbers]]
) -> Iterator[Node]:
    """Yield the nodes that make tensors, or the sizes that tensors are made of."""
    for tensor, request in requests:
        if isinstance(request, Numbers):
            continue
        if not tensor.is_sizes:
            yield tensor.node
            continue
        for size in tensor.value or ():
            for name in symbols_of(size) - {"B"}:
                yield step.inference.symbols[name].tensor.node
