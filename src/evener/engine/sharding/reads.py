"""The tensors that a node reads, and the numbers that it is given in place of some of them.

A number, such as a size or a position, may be computed from data: the longest length in a batch.
Then it is a value like any other, and a part must not use its own maximum as that of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evener.graph.dims import Size, symbols_of_step
from evener.graph.nodes import Node, Tensor
from evener.graph.symbols import SymbolSource
from evener.ops.decision import Sharding
from evener.ops.states import REPLICATED, Numbers, Sharded, State

Symbols = Mapping[str, SymbolSource]


def requests_of(sharding: Sharding, node: Node) -> Iterator[tuple[Tensor, State | Numbers]]:
    """Yield every input of a node with the state that the node needs, or the numbers instead."""
    decision = sharding.decisions.get(node)
    for index, tensor in enumerate(node.inputs):
        yield tensor, REPLICATED if decision is None else decision.inputs[index]


def symbols_read(
    sharding: Sharding, node: Node, symbols: Symbols, *, is_in_body: bool = False
) -> set[str]:
    """Return the symbols whose numbers a node, or a body of it, may be given.

    Args:
        sharding: States of the tensors, and what the parts compute.
        node: A node of the graph that was sharded.
        symbols: Sources of all symbols. Those inside of a body of the node are not returned.
        is_in_body: Whether the graph is a body, where a part without samples skips single nodes.
    """
    found: set[str] = set()
    decision = sharding.decisions.get(node)
    for tensor, request in requests_of(sharding, node):
        if isinstance(request, Numbers):
            found |= _symbols_in(request.sizes)
        elif tensor.is_sizes:
            found |= _symbols_in(tensor.value or ())
        if isinstance(request, Sharded):
            # To split a tensor takes the number of its rows, and of those of a sample.
            found |= _symbols_in((request.rows,))
            if tensor.shape and sharding.states.get(tensor) != request:
                found |= _symbols_in((tensor.shape[request.axis],))
    if decision is not None and decision.lower is not None:
        for tensor in (*node.inputs, *node.outputs):
            found |= _symbols_in((*(tensor.shape or ()), *(tensor.value or ())))
    if decision is not None and decision.needs_samples and is_in_body:
        for tensor in node.outputs:
            found |= _symbols_in(tensor.shape or ())
    for name, body in node.bodies.items():
        inside = Sharding() if decision is None else decision.bodies[name]
        of_body = {
            name for node in body for name in symbols_read(inside, node, symbols, is_in_body=True)
        }
        for tensor in body.outputs:
            of_body |= _symbols_in(tensor.value or ()) if tensor.is_sizes else set()
        own = {*body, *(tensor.node for tensor in body.inputs)}
        found |= {name for name in of_body if symbols[name].tensor.node not in own}
    return found


def _symbols_in(sizes: tuple[Size, ...]) -> set[str]:
    return {name for size in sizes for name in symbols_of_step(size)}


def is_known_to_parts(source: SymbolSource, state: State) -> bool:
    """Return whether every part can read the number of a symbol from what it holds of the source.

    Args:
        source: The tensor, and the axis or the element of it that is the number.
        state: The state of the tensor.
    """
    if source.axis is None:
        return state == REPLICATED
    return not (isinstance(state, Sharded) and state.axis == source.axis)
