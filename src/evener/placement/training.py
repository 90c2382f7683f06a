"""Whether a traced function is a training step."""

from __future__ import annotations

from typing import Any

from evener import _tf_private
from evener.placement.flow import writes_variables
from evener.placement.origins import Origins


def trains(function: Any) -> bool:
    """Return whether a function computes gradients and writes variables, in it or below.

    Args:
        function: What `stop_at` asks about.
    """
    graphs = _tf_private.function_graphs(function)
    operations = [one for graph in graphs.values() for one in graph.get_operations()]
    if not any(writes_variables(one.type) for one in operations):
        return False
    origins = Origins(graphs, "")
    return any(origins.is_of_a_tape(one) for one in operations)
