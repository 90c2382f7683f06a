"""Upper limits of the integers of a step that index rows of tables, or classes.

::

    tokens ──Reshape──Cast──> GatherV2(table of 20,000 rows)      tokens < 20,000
    labels ──────────> SparseSoftmaxCrossEntropy(10 classes)      labels < 10

Measurements use random indices below the limit: a layer that always reads the same row would find
it in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from evener.graph.dims import Size
from evener.graph.nodes import Graph, Node, Tensor

_FIRST = ("Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose")
_PASSING: dict[str, slice] = {
    **dict.fromkeys(_FIRST, slice(0, 1)),
    **dict.fromkeys(("AddV2", "Pack"), slice(None)),
    **dict.fromkeys(("Select", "SelectV2"), slice(1, 3)),
    "ConcatV2": slice(-1),
}
"""Operations whose results are below a limit if these inputs are. ``i + n``, which wraps negative
indices, is assumed to be unused."""


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
        if node.op in _TABLES:
            index, limit = _TABLES[node.op](node, shapes)
            lower(index, limit)
        if node.op in _PASSING and node.outputs[0] in limits:
            for tensor in node.inputs[_PASSING[node.op]]:
                lower(tensor, limits[node.outputs[0]])
    return limits


_Named = tuple[Tensor, Size | None]


def _gather(node: Node, shapes: Mapping[Tensor, tuple[int, ...]]) -> _Named:
    del shapes
    shape, axes = node.inputs[0].shape, node.inputs[2].value or ()
    axis = axes[0] if axes else None
    return node.inputs[1], shape[axis] if shape and isinstance(axis, int) else None


def _resource_gather(node: Node, shapes: Mapping[Tensor, tuple[int, ...]]) -> _Named:
    shape = shapes.get(node.inputs[0], ())
    return node.inputs[1], shape[0] if shape else None


def _segments(node: Node, shapes: Mapping[Tensor, tuple[int, ...]]) -> _Named:
    del shapes
    count = node.inputs[2].value
    return node.inputs[1], count[0] if count else None


def _classes(node: Node, shapes: Mapping[Tensor, tuple[int, ...]]) -> _Named:
    del shapes
    shape = node.inputs[0].shape
    return node.inputs[1], shape[-1] if shape else None


_TABLES: dict[str, Callable[[Node, Mapping[Tensor, tuple[int, ...]]], _Named]] = {
    "GatherV2": _gather,
    "ResourceGather": _resource_gather,
    "SparseSoftmaxCrossEntropyWithLogits": _classes,
    "UnsortedSegmentSum": _segments,
}
