"""Steps that can be computed more than once: all that they change can be put back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import tensorflow as tf

from evener.engine.origin import warn_at_user_line
from evener.engine.trace.draws import Streams
from evener.graph.nodes import Graph, Node, Tensor

_HARMLESS = ("Assert", "NoOp", "Print", "PrintV2")


def can_run_twice(
    graph: Graph, variables: Collection[Tensor], streams: Streams | None = None
) -> bool:
    """Return whether a step can be computed once more, and warn if not.

    Args:
        graph: Graph of the step.
        variables: Arguments that are handles of variables, which are put back.
        streams: Random streams of the step, which begin anew on one device.
    """
    found = [f"{node.op} ({node.name})" for node in not_put_back(graph.nodes, variables)]
    found += [name[0] for name in streams.names] if streams is not None else []
    if not found:
        return True
    warn_at_user_line(
        "ENG-087",
        "A step cannot be verified: it would not run on one device as it runs without "
        "verification.",
        why=f"It has the operation {found[0]}, which changes or draws from what is "
        "not a variable, so its effect cannot be undone.",
        fix="Verify a step without it; for random numbers, use tf.random.Generator or a seed of "
        "Keras's.",
    )
    return False


def not_put_back(nodes: Iterable[Node], variables: Collection[Tensor]) -> Iterator[Node]:
    """Yield the operations whose effects stay when variables are put back.

    Args:
        nodes: Operations of a graph.
        variables: Arguments of the graph that are handles of variables.
    """
    for node in nodes:
        if not node.has_side_effect or node.op in _HARMLESS:
            continue
        resources = [tensor for tensor in node.inputs if tensor.dtype == tf.resource]
        if any(tensor not in variables for tensor in resources):
            yield node
        elif node.bodies:
            for body in node.bodies.values():
                handles = [tensor for tensor in body.inputs if tensor.dtype == tf.resource]
                yield from not_put_back(body.nodes, handles)
        elif not resources:
            yield node
