"""Draws from generators whose state is in a kernel, such as those of `tf.random.normal`.

Each worker runs such a kernel, and all take the numbers of one of them: generators without a seed
draw other numbers in every process. A step that is computed again draws again; so the numbers of
each kernel are a queue, from which a step takes the first ones that no step has used.
"""

from __future__ import annotations

from evener.engine.trace.functional import CONDITIONS, LOOPS, bodies_of
from evener.errors import EngineError
from evener.graph.nodes import Graph, Node

DRAWS = "draws"
"""Role of the tasks that run such kernels."""


def draws(node: Node) -> bool:
    """Return whether a node draws from a state that its kernel has."""
    return node.is_stateful and any("seed" in name for name in node.attrs)


def has_seed(node: Node) -> bool:
    """Return whether the state of a drawing node begins with a fixed seed."""
    return any(node.int_attr(name) for name in ("seed", "seed2") if name in node.attrs)


def has_hidden_draws(graph: Graph, *, is_inside: bool = False) -> bool:
    """Return whether bodies of loops and conditions draw.

    Raises:
        EngineError: ENG-097 if they draw without a seed.
    """
    found = False
    for node in graph:
        if is_inside and draws(node):
            if not has_seed(node):
                raise EngineError(
                    "ENG-097",
                    f"A loop or a condition draws random numbers without a seed: {node.op}.",
                    why="Each worker would draw other numbers.",
                    fix="Call keras.utils.set_random_seed(1) at the start, or draw in front of the "
                    "loop.",
                )
            found = True
        if node.op in LOOPS | CONDITIONS:
            bodies = node.bodies or bodies_of(node, graph)
            found |= any([has_hidden_draws(b, is_inside=True) for b in bodies.values()])
    return found
