"""Whether a traced function is a training step."""

from __future__ import annotations

from typing import Any

from evener import _tf_private
from evener.placement.flow import writes_variables
from evener.placement.origins import Origins

# TensorFlow's own function, which gives new variables their first values.
_FIRST_VALUES = "initialize_variables"


def trains(function: Any) -> bool:
    """Return whether a function computes gradients and writes variables, in it or below.

    Args:
        function: What `stop_at` asks about.
    """
    if not writes(function):
        return False
    graphs = _tf_private.function_graphs(function)
    origins = Origins(graphs, "")
    operations = (one for graph in graphs.values() for one in graph.get_operations())
    return any(map(origins.is_of_a_tape, operations))


def writes(function: Any) -> bool:
    """Return whether a function writes variables, other than their first values."""
    if _FIRST_VALUES in str(function.name):
        return False
    graphs = _tf_private.function_graphs(function).values()
    return any(writes_variables(one.type) for graph in graphs for one in graph.get_operations())
