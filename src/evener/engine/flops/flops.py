"""Floating-point operations of nodes, for each sample.

Exact for products of matrices, convolutions and contractions; of a loop, its body times its
iterations; arithmetic counts the elements of its results, and what only moves data nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from evener.engine.flops.loops import num_iterations
from evener.engine.flops.sizes import num_elements, numbers
from evener.engine.trace.functional import LOOPS
from evener.graph.dims import Size
from evener.graph.nodes import Node, Tensor

_FREE = frozenset(
    {
        "BroadcastTo",
        "Cast",
        "ConcatV2",
        "Const",
        "ExpandDims",
        "Fill",
        "GatherV2",
        "Identity",
        "NoOp",
        "OnesLike",
        "Pack",
        "Pad",
        "PadV2",
        "Placeholder",
        "ReadVariableOp",
        "Reshape",
        "ResourceGather",
        "Shape",
        "ShapeN",
        "Slice",
        "Split",
        "SplitV",
        "Squeeze",
        "StopGradient",
        "StridedSlice",
        "Tile",
        "Transpose",
        "Unpack",
        "ZerosLike",
    }
)
"""Operations that compute nothing: they make, move or view what is there."""

_FEW, _MANY = 32, 64


def flops_per_sample(nodes: Iterable[Node]) -> float:
    """Return how many floating-point operations nodes take for each sample."""
    nodes = list(nodes)
    return (_flops(nodes, _MANY) - _flops(nodes, _FEW)) / (_MANY - _FEW)


def _flops(nodes: Iterable[Node], num_samples: int) -> float:
    return sum(node_flops(node, num_samples) for node in nodes)


def node_flops(node: Node, num_samples: int) -> float:
    """Return how many floating-point operations a node takes for a number of samples."""
    if node.op in _FREE or not node.outputs:
        return 0
    if node.op in LOOPS and "body" in node.bodies:
        return num_iterations(node) * _flops(node.bodies["body"], num_samples)
    if node.bodies:
        return max(_flops(body, num_samples) for body in node.bodies.values())
    count = _COUNTS.get(node.op)
    if count is not None and all(t.shape is not None for t in (*node.inputs, *node.outputs)):
        return count(node, num_samples)
    return sum(num_elements(tensor, num_samples) for tensor in node.outputs)


def _matmul(node: Node, num_samples: int) -> float:
    turned = node.bool_attr("transpose_a") or node.bool_attr("adj_x")
    inner = _sizes(node.inputs[0], num_samples)[-2 if turned else -1]
    return 2 * inner * num_elements(node.outputs[0], num_samples)


def _convolution(node: Node, num_samples: int) -> float:
    """Every element of the result is a sum over the filter and its input channels."""
    return _by_filter(_sizes(node.inputs[1], num_samples), node.outputs[0], num_samples)


def _of_input(node: Node, num_samples: int) -> float:
    """The gradient of the input: as many products as the convolution itself has."""
    return _by_filter(_sizes(node.inputs[1], num_samples), node.inputs[2], num_samples)


def _of_filter(node: Node, num_samples: int) -> float:
    """The gradient of the filter: as many products as the convolution itself has."""
    return _by_filter(_sizes(node.outputs[0], num_samples), node.inputs[2], num_samples)


def _by_filter(filter_sizes: Sequence[int], result: Tensor, num_samples: int) -> float:
    return 2 * math.prod(filter_sizes[:-1]) * num_elements(result, num_samples)


def _depthwise(node: Node, num_samples: int) -> float:
    window = math.prod(_sizes(node.inputs[1], num_samples)[:2])
    return 2 * window * num_elements(node.outputs[0], num_samples)


def _einsum(node: Node, num_samples: int) -> float:
    terms = node.text_attr("equation").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, node.inputs, strict=True):
        sizes.update(zip(term.replace("...", ""), _sizes(tensor, num_samples), strict=False))
    return 2 * math.prod(sizes.values())


def _sizes(tensor: Tensor, num_samples: int) -> tuple[int, ...]:
    shape: Sequence[Size] = tensor.shape or ()
    return numbers(shape, num_samples)


_COUNTS: dict[str, Callable[[Node, int], float]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    **dict.fromkeys(("Conv2D", "Conv3D"), _convolution),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _of_input),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), _of_filter),
    "DepthwiseConv2dNative": _depthwise,
    **dict.fromkeys(("Einsum", "XlaEinsum"), _einsum),
}
