"""Upper limits of the integers of a step that index rows of tables, or classes.

::

    tokens ──Reshape──Cast──> GatherV2(table of 20,000 rows)      tokens < 20,000
    labels ──────────> SparseSoftmaxCrossEntropy(10 classes)      labels < 10

Measurements use random indices below the limit: a layer that always reads the same row would find
it in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from evener.graph.dims import Size
from evener.graph.nodes import Graph, Tensor
from evener.ops.registry import operation


def index_limits(graph: Graph, shapes: Mapping[Tensor, tuple[int, ...]]) -> dict[Tensor, int]:
    """Return the exclusive upper limits of integer tensors, as far as they are known.

    Args:
        graph: Graph of the step.
        shapes: Shapes of the variables, by their resource arguments of the step.
    """
    limits: dict[Tensor, int] = {}

    def lower(tensor: Tensor, limit: Size | None) -> None:
        is_data = tensor.dtype.is_integer and not tensor.is_sizes
        if is_data and isinstance(limit, int) and limit > 0:
            limits[tensor] = min(limit, limits.get(tensor, limit))

    for node in reversed(list(graph)):
        known = operation(node.op)
        if known.index_limit is not None:
            lower(*known.index_limit(node, shapes))
        # ``i + n``, which wraps negative indices, is assumed to be unused.
        if known.index_inputs is not None and node.outputs[0] in limits:
            for tensor in node.inputs[known.index_inputs]:
                lower(tensor, limits[node.outputs[0]])
    return limits
