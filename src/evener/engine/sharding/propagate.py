"""The sharding of every tensor of a graph, from that of its inputs: one pass, front to back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from evener.engine.sharding.bodies import decide_functional
from evener.engine.sharding.per_part import elementwise_per_part, mean_per_part
from evener.engine.sharding.reads import Symbols
from evener.engine.sharding.resharding import Rows
from evener.engine.sharding.rows import is_of_rows
from evener.graph.dims import BATCH
from evener.graph.nodes import Graph, Node, Tensor
from evener.ops.decision import Decision, Sharding
from evener.ops.registry import operation
from evener.ops.states import (
    PER_PART,
    REPLICATED,
    Partial,
    Sharded,
    State,
    is_shardable,
)


def propagate(
    graph: Graph,
    inputs: Mapping[Tensor, State],
    symbols: Symbols,
    *,
    is_body: bool = False,
    given: Iterable[Tensor] | None = None,
) -> Sharding:
    """Find the state of every tensor.

    Args:
        graph: The step, with symbolic shapes.
        inputs: The states of its arguments; what is not there is replicated.
        symbols: Sources of the symbols in its shapes.
        is_body: Whether the graph is the body of a loop or a condition.
        given: The arguments of the step, whose rows may be split where costly operations read what
            is computed of them; None if nothing is split that is computed once.
    """
    rows = None if given is None else Rows.of(given)
    sharding = Sharding()
    for tensor in graph.inputs:
        sharding.states[tensor] = inputs.get(tensor, REPLICATED)
    for node in graph:
        if node.op == "Placeholder" and node.outputs[0] in sharding.states:
            continue
        states = [sharding.states[t] for t in node.inputs]
        decision = _decide_by_rows(node, states, symbols, is_body=is_body)
        if decision is None and rows is not None:
            trials = (_decide_by_rows(node, split, symbols) for split in rows.splits(node, states))
            decision = next(filter(None, trials), None)
        if rows is not None:
            rows.follow(node)
        if decision is not None:
            sharding.decisions[node] = decision
        for index, tensor in enumerate(node.outputs):
            sharding.states[tensor] = REPLICATED if decision is None else decision.outputs[index]
    return sharding


def _decide_by_rows(
    node: Node, states: Sequence[State], symbols: Symbols, *, is_body: bool = False
) -> Decision | None:
    """Return what the parts compute of a node: of its inputs those that are split alike stay so."""
    found = dict.fromkeys(state.rows for state in states if isinstance(state, Sharded))
    for rows in found or [BATCH]:
        alike = [
            REPLICATED if isinstance(state, Sharded) and state.rows != rows else state
            for state in states
        ]
        decision = decide(node, alike, symbols, is_body=is_body)
        if decision is not None and is_of_rows(node, decision, rows):
            return decision
    return None


def decide(
    node: Node, states: Sequence[State], symbols: Symbols, *, is_body: bool = False
) -> Decision | None:
    """Return what the parts compute of a node, or None if it is computed once."""
    if node.has_side_effect:
        return None
    if not is_body:
        # Bodies cannot average what the parts hold, so there the statistics are exact.
        decision = mean_per_part(node, states) or elementwise_per_part(node, states)
        if decision is not None:
            return decision
    states = [REPLICATED if state == PER_PART else state for state in states]
    rules = operation(node.op)
    if any(isinstance(state, Partial) for state in states):
        for rule in (rules.inside_rule if is_body else None, rules.partial_rule):
            decision = None if rule is None else rule(node, states)
            if decision is not None:
                return decision
        states = [REPLICATED if isinstance(s, Partial) else s for s in states]
    if node.bodies:
        return decide_functional(node, states, symbols, _propagate_body, is_body=is_body)
    decision = None if rules.rule is None else rules.rule(node, states)
    return decision if decision is not None and _is_possible(node, decision) else None


def _is_possible(node: Node, decision: Decision) -> bool:
    """Return whether all tensors that a rule wants sharded have rows of samples for certain."""
    pairs = [*zip(node.inputs, decision.inputs, strict=True)]
    pairs += [*zip(node.outputs, decision.outputs, strict=True)]
    return all(
        tensor.dtype == tf.variant or is_shardable(tensor.shape, state)
        for tensor, state in pairs
        if isinstance(state, Sharded)
    )


def _propagate_body(body: Graph, states: Sequence[State], symbols: Symbols) -> Sharding:
    return propagate(body, dict(zip(body.inputs, states, strict=True)), symbols, is_body=True)
