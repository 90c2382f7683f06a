"""Reference: the step computed whole, as one function without parts, rules and writes.

::

    the traced step     read w ─► gradient ─► assign m ─► read m ─► assign w ─► result
    the function        read w ─► gradient                read m ─────────────► result

Writes are left out, so reads behind them return the values from before the step. Both sides of a
check do so, and must agree all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener.engine.partition.functions import FunctionBuilder, TensorArgument
from evener.engine.partition.nested import copy_functional
from evener.engine.partition.values import Values
from evener.engine.sharding.reads import symbols_read
from evener.engine.trace.inference import Inference
from evener.graph.nodes import Graph, Node, Tensor
from evener.ops.decision import Sharding
from evener.ops.states import REPLICATED

_STATELESS_DRAWS = {
    "RandomUniform": "StatelessRandomUniform",
    "RandomStandardNormal": "StatelessRandomNormal",
    "TruncatedNormal": "StatelessTruncatedNormal",
}
"""Operations that draw from seeds of the check, which leave the program's generators alone."""

_READS = ("RngReadAndSkip",)


def known_nodes(graph: Graph) -> set[Node]:
    """Return the nodes that can be computed without changing anything."""
    arguments = {tensor.node for tensor in graph.inputs}
    known: set[Node] = set()
    for node in graph:
        if node in arguments:
            known.add(node)
        elif all(tensor.node in known for tensor in node.inputs) and _is_computable(node):
            known.add(node)
    return known


def _is_computable(node: Node) -> bool:
    return not node.has_side_effect or node.op in (*_STATELESS_DRAWS, *_READS)


def needed_nodes(
    graph: Graph, targets: Iterable[Tensor], sharding: Sharding, inference: Inference
) -> list[Node]:
    """Return the nodes that tensors are computed from, in an order in which they can run.

    Args:
        graph: Step.
        targets: Tensors.
        sharding: Sharding without parts.
        inference: Sources of the symbols of sizes.
    """
    needed: set[Node] = set()
    stack = [tensor.node for tensor in targets]
    while stack:
        node = stack.pop()
        if node in needed:
            continue
        needed.add(node)
        stack.extend(tensor.node for tensor in node.inputs)
        if node.bodies:
            names = symbols_read(sharding, node, inference.symbols)
            stack.extend(inference.symbols[name].tensor.node for name in names)
    return [node for node in graph if node in needed]


def build_reference(
    graph: Graph, inference: Inference, targets: Sequence[Tensor], keeps: Any
) -> FunctionBuilder:
    """Make a function of the arguments of a step that returns some of its tensors.

    Sizes are computed as the program asked for them, and not from the symbols of the traced step,
    except in bodies of loops and conditions.

    Args:
        graph: Step.
        inference: Sources of the symbols of sizes.
        targets: Tensors; their nodes have to be among `known_nodes`.
        keeps: Object that keeps functions alive that nodes refer to by name.
    """
    whole = Sharding()
    whole.states = {tensor: REPLICATED for node in graph for tensor in node.outputs}
    nodes = needed_nodes(graph, targets, whole, inference)
    builder = FunctionBuilder("whole", inference=inference)
    references: dict[Tensor, str] = {}
    # Finds the symbols of sizes that bodies need.
    Values(whole, inference, builder, references)
    arguments = {tensor.node for tensor in graph.inputs}
    seeds = itertools.count(1)
    for node in nodes:
        if node in arguments:
            for tensor in node.outputs:
                argument = TensorArgument(tensor, REPLICATED)
                references[tensor] = builder.argument(argument, tensor.dtype)
            continue
        builder.origin = node.source
        inputs = [references[tensor] for tensor in node.inputs]
        outputs = _copy(builder, node, inputs, lambda: next(seeds))
        references.update(zip(node.outputs, outputs, strict=True))
    for tensor in targets:
        builder.output(references[tensor], tensor.dtype)
    builder.register(keeps)
    return builder


def _copy(
    builder: FunctionBuilder, node: Node, inputs: list[str], seed: Callable[[], int]
) -> Sequence[str]:
    if node.bodies:
        return copy_functional(builder, node, inputs)
    if node.op in _READS:
        # It returns the state from before.
        return builder.op("ReadVariableOp", inputs[:1], {"dtype": node.outputs[0].dtype})
    if node.op in _STATELESS_DRAWS:
        drawn = builder.constant(np.array([0, seed()]), tf.int32)
        attrs = {"dtype": node.outputs[0].dtype, "T": node.inputs[0].dtype, "Tseed": tf.int32}
        return builder.op(_STATELESS_DRAWS[node.op], [inputs[0], drawn], attrs)
    return builder.copy(node.op, node.name, inputs, node.attrs)
