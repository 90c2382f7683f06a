"""Sizes that count samples in a step that is traced for batches of one size.

Such a trace has numbers where others have the size of the batch: the step has asked for it
(``len(x)``), or draws from kernels with a seed, and TensorFlow traces it again for each size. Then
nobody sees that the 8 of a gradient of ones is the 8 of the batch, and not that of eight classes.

A second trace, for batches twice as large, shows it: what has become twice as large counts samples.

    batches of 8     Const [8, 4]    ones (8, 4)    MatMul (8, 10)
    batches of 16    Const [16, 4]   ones (16, 4)   MatMul (16, 10)
    found            [B, 4]          (B, 4)         (B, 10)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evener.graph.constants import constant_array
from evener.graph.dims import BATCH, Size
from evener.graph.nodes import Graph, Node, Tensor
from evener.ops.values import LARGEST_VALUE

FACTOR = 2
"""Samples of the second trace for each of the first: what the first can halve, the second can."""
_Sizes = tuple[Size | None, ...]


@dataclass(slots=True)
class SizesOfBatches:
    """Sizes that count samples.

    Attributes:
        shapes: Shapes of tensors in which some do.
        values: Numbers of constants of which some do.
    """

    shapes: dict[Tensor, _Sizes] = field(default_factory=dict)
    values: dict[Tensor, tuple[Size, ...]] = field(default_factory=dict)


def find_sizes_of_batches(graph: Graph, larger: Graph, num_samples: int) -> SizesOfBatches:
    """Return the sizes that count samples; none if the graphs are of unlike operations.

    Args:
        graph: Graph of a step for batches of one size.
        larger: Graph of the same step for batches that are `FACTOR` times as large.
        num_samples: The size of the batches of the first graph.
    """
    found = SizesOfBatches()
    for node, other in _pairs(graph, larger) or ():
        for tensor, same in zip(node.outputs, other.outputs, strict=True):
            shape = _shape(tensor, same, num_samples)
            if shape is not None:
                found.shapes[tensor] = shape
        if node.op == "Const":
            value = _value(node.outputs[0], other.outputs[0], num_samples)
            if value is not None:
                found.values[node.outputs[0]] = value
    return found


def _pairs(graph: Graph, larger: Graph) -> list[tuple[Node, Node]] | None:
    """Return the nodes of both graphs side by side, those of bodies too; None for unlike graphs."""
    if len(graph.nodes) != len(larger.nodes):
        return None
    pairs: list[tuple[Node, Node]] = []
    for node, other in zip(graph.nodes, larger.nodes, strict=True):
        pairs.append((node, other))
        if not _are_alike(node, other):
            return None
        for name, body in node.bodies.items():
            inside = _pairs(body, other.bodies[name])
            if inside is None:
                return None
            pairs += inside
    return pairs


def _are_alike(node: Node, other: Node) -> bool:
    return (
        node.op == other.op
        and len(node.inputs) == len(other.inputs)
        and len(node.outputs) == len(other.outputs)
        and list(node.bodies) == list(other.bodies)
    )


def _shape(tensor: Tensor, same: Tensor, num_samples: int) -> _Sizes | None:
    static = tensor.node.static_shapes[tensor.index]
    larger = same.node.static_shapes[same.index]
    if static is None or larger is None or len(static) != len(larger) or static == larger:
        return None
    pairs = zip(static, larger, strict=True)
    return tuple(
        _size(size, other, num_samples) if size is not None and other is not None else size
        for size, other in pairs
    )


def _value(constant: Tensor, other: Tensor, num_samples: int) -> tuple[Size, ...] | None:
    numbers, others = _numbers(constant), _numbers(other)
    if numbers is None or others is None or len(numbers) != len(others) or numbers == others:
        return None
    return tuple(_size(*pair, num_samples) for pair in zip(numbers, others, strict=True))


def _numbers(constant: Tensor) -> Sequence[int] | None:
    """Return the numbers of a small constant of integers, a scalar or vector."""
    shape = constant.node.static_shapes[constant.index]
    if not constant.dtype.is_integer or shape is None or len(shape) > 1:
        return None
    if any(size is None or size > LARGEST_VALUE for size in shape):
        return None
    array = constant_array(constant)
    return None if array is None else [int(number) for number in array.ravel()]


def _size(size: int, larger: int, num_samples: int) -> Size:
    if size and size % num_samples == 0 and larger == FACTOR * size:
        return BATCH * (size // num_samples)
    return size
