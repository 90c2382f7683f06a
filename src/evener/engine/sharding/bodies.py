"""Loops and conditions whose bodies every part can run by itself.

The bodies are sharded like the step, with one difference: nothing can be gathered or combined
inside of them. A loop whose body needs that is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from evener.engine.sharding.reads import Symbols, is_known_to_parts, symbols_read
from evener.engine.sharding.row_loops import decide_row_loop
from evener.engine.trace.functional import LOOPS, num_leading
from evener.graph.dims import symbols_of, symbols_of_step
from evener.graph.nodes import Graph, Node, Tensor
from evener.ops.decision import Decision, Sharding
from evener.ops.states import (
    REPLICATED,
    Numbers,
    Partial,
    Sharded,
    State,
    Unset,
    is_shardable,
    serves,
)

ShardBody: TypeAlias = Callable[[Graph, Sequence[State], Symbols], Sharding]
_MOST_ROUNDS = 8


def decide_functional(
    node: Node,
    states: Sequence[State],
    symbols: Symbols,
    shard: ShardBody,
    *,
    is_body: bool = False,
) -> Decision | None:
    """Return what the parts compute of a loop or a condition, or None if it is computed once.

    Args:
        node: The loop or condition.
        states: The states of its inputs.
        symbols: Sources of all symbols.
        shard: Finds the states in a body from those of its arguments.
        is_body: Whether the node is in a body itself.
    """
    over_rows = None if is_body else decide_row_loop(node, states)
    if over_rows is not None:
        return over_rows
    if not any(isinstance(state, Sharded | Unset | Partial) for state in states):
        return None
    if node.op in LOOPS:
        return _loop(node, states, symbols, shard)
    return _condition(node, states, symbols, shard)


def _loop(
    node: Node, states: Sequence[State], symbols: Symbols, shard: ShardBody
) -> Decision | None:
    """States that go into a round are those that come out of it."""
    body, condition = node.bodies["body"], node.bodies["cond"]
    entering = list(states)
    for _ in range(_MOST_ROUNDS):
        inside = shard(body, entering, symbols)
        leaving = [inside.states[t] for t in body.outputs]
        joined = [
            _join(before, after, tensor)
            for before, after, tensor in zip(entering, leaving, body.outputs, strict=True)
        ]
        if None in joined:
            return None
        if joined == entering:
            break
        entering = _next_round(states, entering, [state for state in joined if state is not None])
    else:
        return None
    test = shard(condition, entering, symbols)
    if not is_local(body, inside, symbols) or not is_local(condition, test, symbols):
        return None
    if test.states[condition.outputs[0]] != REPLICATED:
        return None
    if not _are_guarded(inside, symbols) or not _are_guarded(test, symbols):
        return None
    shardings = {"body": inside, "cond": test}
    for before, state, tensor in zip(states, entering, node.inputs, strict=True):
        if not _can_enter(before, state, tensor):
            return None

    return Decision(inputs=tuple(entering), outputs=tuple(entering), bodies=shardings)


def _next_round(
    given: Sequence[State], entering: Sequence[State], joined: Sequence[State]
) -> list[State]:
    """Return the states of the next round: of lists that begin without elements, at last.

    What is written to such a list may be split only once other states are known.
    """
    is_open = [isinstance(state, Unset) for state in given]
    triples = list(zip(is_open, entering, joined, strict=True))
    if any(before != after and not is_list for is_list, before, after in triples):
        return [before if is_list else after for is_list, before, after in triples]
    return list(joined)


def _condition(
    node: Node, states: Sequence[State], symbols: Symbols, shard: ShardBody
) -> Decision | None:
    """All branches give results in the same state."""
    first = num_leading(node)
    if states[0] != REPLICATED:
        return None
    shardings: dict[str, Sharding] = {}
    leaving: list[list[State]] = []
    for name, body in node.bodies.items():
        inside = shard(body, states[first:], symbols)
        if not is_local(body, inside, symbols) or not _are_guarded(inside, symbols):
            return None
        shardings[name] = inside
        leaving.append([inside.states[t] for t in body.outputs])
    results: list[State] = []
    for index, column in enumerate(zip(*leaving, strict=True)):
        state: State | None = column[0]
        for name, other in zip(node.bodies, column, strict=True):
            tensor = node.bodies[name].outputs[index]
            state = None if state is None else _join(state, other, tensor)
        if state is None:
            return None
        results.append(state)
    for name, body in node.bodies.items():
        for state, tensor in zip(results, body.outputs, strict=True):
            if isinstance(state, Sharded) and tensor.dtype != tf.variant:
                if not is_shardable(tensor.shape, state):
                    return None
            if shardings[name].states[tensor] != state and not _can_become(
                shardings[name].states[tensor], state
            ):
                return None

    return Decision(inputs=tuple(states), outputs=tuple(results), bodies=shardings)


def is_local(graph: Graph, sharding: Sharding, symbols: Symbols) -> bool:
    """Return whether every part can run a body by itself: nothing in it needs another part.

    What needs no samples is computed by every part.
    """
    arguments = {tensor.node for tensor in graph.inputs}
    for node in graph:
        if node in arguments or is_made_of_sizes(node):
            continue
        for name in symbols_read(sharding, node, symbols, is_in_body=True):
            state = sharding.states.get(symbols[name].tensor, REPLICATED)
            if not is_known_to_parts(symbols[name], state):
                return False
        decision = sharding.decisions.get(node)
        if decision is None:
            if node.is_stateful or any(sharding.states[t] != REPLICATED for t in node.inputs):
                return False
            continue
        for tensor, wanted in zip(node.inputs, decision.inputs, strict=True):
            if tensor.is_sizes and wanted == REPLICATED:
                continue
            if not _is_free(sharding.states[tensor], wanted, tensor):
                return False
    return True


def is_made_of_sizes(node: Node) -> bool:
    """Return whether nobody needs a node, because all that it computes is made of sizes."""
    return bool(node.outputs) and all(tensor.is_sizes for tensor in node.outputs)


def _is_free(state: State, wanted: State | Numbers, tensor: Tensor) -> bool:
    """Whether a part can have a tensor as it is needed without the other parts."""
    if isinstance(wanted, Numbers):
        return True
    if serves(state, wanted):
        return True
    if state != REPLICATED or not isinstance(wanted, Sharded) or tensor.dtype == tf.variant:
        return False
    # Blocks are cut out of a shape of which every part knows the numbers.
    names = {name for size in tensor.shape or () for name in symbols_of(size)}
    return wanted.outer == 1 or names <= {"B"} | symbols_of(wanted.rows)


def _are_guarded(sharding: Sharding, symbols: Symbols) -> bool:
    """Return whether a part without samples can skip what needs them: its shapes are known."""
    return all(
        _has_known_shape(tensor, node, symbols)
        for node, decision in sharding.decisions.items()
        if decision.needs_samples
        for tensor in node.outputs
    )


def _has_known_shape(tensor: Tensor, node: Node, symbols: Symbols) -> bool:
    """Return whether all sizes of a tensor are known without it."""
    if tensor.shape is None:
        return False
    names = {name for size in tensor.shape for name in symbols_of_step(size)}
    return all(symbols[name].tensor.node is not node for name in names)


def _join(before: State, after: State, tensor: Tensor) -> State | None:
    """Return the state that serves both; None if there is none without gathering."""
    if before == after or isinstance(after, Unset):
        return before
    if isinstance(before, Unset):
        return after
    if before == REPLICATED and isinstance(after, Sharded | Partial):
        return after
    if isinstance(before, Sharded) and after == REPLICATED:
        return before if is_shardable(tensor.shape, before) else None
    if isinstance(before, Sharded) and isinstance(after, Sharded) and tensor.dtype != tf.variant:
        # What is given to a loop is split anew, as the loop has it: the zeros of an RNN layer.
        return after if is_shardable(tensor.shape, after) else None
    return None


def _can_enter(before: State, state: State, tensor: Tensor) -> bool:
    """Whether what is given to a loop can be had in the state that the loop needs."""
    if before == state or isinstance(before, Unset):
        return True
    if tensor.dtype == tf.variant:
        return False
    return not isinstance(state, Sharded) or is_shardable(tensor.shape, state)


def _can_become(state: State, wanted: State) -> bool:
    return state == wanted or (state == REPLICATED and isinstance(wanted, Sharded))
