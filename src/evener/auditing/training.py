"""Whether a traced function is a training step."""

from __future__ import annotations

from typing import Any

from evener._tf_private.functions import function_graphs
from evener.auditing.flow import writes_variables
from evener.auditing.origins import Origins

# TensorFlow's function that initializes new variables.
_INITIALIZATION = "initialize_variables"


def trains(function: Any) -> bool:
    """Return whether a traced function, or one it calls, computes gradients and writes variables.

    Args:
        function: The traced function, as `stop_at` passes it.
    """
    if not writes(function):
        return False
    graphs = function_graphs(function)
    origins = Origins(graphs, "")
    operations = (operation for graph in graphs.values() for operation in graph.get_operations())
    return any(map(origins.is_made_by_tape, operations))


def writes(function: Any) -> bool:
    """Return whether a traced function writes variables, other than to initialize them."""
    if _INITIALIZATION in str(function.name):
        return False
    graphs = function_graphs(function).values()
    return any(
        writes_variables(operation.type) for graph in graphs for operation in graph.get_operations()
    )
