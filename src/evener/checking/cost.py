"""Estimated processor seconds of a check, known before it is built."""

from __future__ import annotations

from collections.abc import Iterable

from evener.engine.flops.flops import node_flops
from evener.graph.nodes import Node

PART_OF_RUN = 0.01
"""Largest part of the run so far that a check may take."""
SHORT_RUN_SECONDS = 60.0
"""Least duration that is assumed of a run."""
_SECONDS_PER_NODE = 250e-6
_FLOPS_PER_SECOND = 10e9
_BYTES_PER_SECOND = 0.5e9


def estimated_seconds(
    nodes: Iterable[Node], *, num_samples: int, num_parts: int, variable_bytes: int
) -> float:
    """Return the seconds for building and running both sides of a check.

    Args:
        nodes: Nodes of the step.
        num_samples: Number of samples that are computed.
        num_parts: Number of parts.
        variable_bytes: Bytes of all variables that the step uses.
    """
    nodes = list(nodes)
    flops = 2 * sum(node_flops(node, num_samples) for node in nodes)
    making = len(nodes) * _SECONDS_PER_NODE * (1 + num_parts)
    return making + flops / _FLOPS_PER_SECOND + variable_bytes / _BYTES_PER_SECOND


def begins_after(seconds: float) -> float:
    """Return how long after the first step a check of so many seconds may begin."""
    return max(0.0, seconds / PART_OF_RUN - SHORT_RUN_SECONDS)
