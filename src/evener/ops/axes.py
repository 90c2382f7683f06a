"""Axes and sizes: facts and rules that several families of operations share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evener.graph.dims import Size, symbols_of
from evener.graph.nodes import Node, Tensor
from evener.graph.symbols import SymbolTable
from evener.ops.registry import InferRule, Shape, Shapes
from evener.ops.states import FIRST, Sharded, is_shardable


def like_input(index: int) -> InferRule:
    """Return the rule of operations whose results have the shape of an input."""

    def rule(table: SymbolTable, node: Node) -> Shapes:
        return [node.inputs[index].shape] * len(node.outputs)

    return rule


def given_by_input(index: int) -> InferRule:
    """Return the rule of operations that are given the shape of their result as an input."""

    def rule(table: SymbolTable, node: Node) -> Shapes:
        return [node.inputs[index].value]

    return rule


def scalar(table: SymbolTable, node: Node) -> Shapes:
    """Return the shape of a number."""
    return [()]


def batch_first(table: SymbolTable, node: Node) -> Shapes:
    """Return shapes whose first axis is that of the input; TensorFlow knows the others."""
    shape = node.inputs[0].shape
    return [
        behind(table, tensor, shape[:1]) if shape and static and static[0] is None else None
        for tensor, static in zip(node.outputs, node.static_shapes, strict=True)
    ]


def behind(table: SymbolTable, tensor: Tensor, front: Shape) -> Shape | None:
    """Return a shape that begins with the given sizes; TensorFlow knows the others.

    Args:
        table: Makes symbols for sizes that TensorFlow does not know.
        tensor: The output.
        front: The sizes of the first axes.
    """
    static = tensor.node.static_shapes[tensor.index]
    if static is None or len(static) < len(front):
        return None
    rest = (
        table.new_symbol(tensor, axis) if size is None else size
        for axis, size in enumerate(static)
        if axis >= len(front)
    )
    return (*front, *rest)


def broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """Return the shape of an elementwise result, None if it is not certain."""
    if any(shape is None for shape in shapes):
        return None
    known: list[Shape] = [shape for shape in shapes if shape is not None]
    rank = max(len(shape) for shape in known)
    result: list[Size] = []
    for axis in range(-rank, 0):
        sizes = {shape[axis] for shape in known if len(shape) >= -axis} - {1}
        if len(sizes) > 1:
            # One of two sizes is 1, or they are equal: not known before the step runs, unless
            # one of them is a number.
            numbers = {size for size in sizes if isinstance(size, int)}
            if len(numbers) != 1:
                return None
            sizes = numbers
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def reduced_axes(shape: Shape, axes: Shape | None) -> set[int] | None:
    """Return the axes over which a _reduction_shape goes, counted from the front."""
    if axes is None or not all(isinstance(axis, int) for axis in axes):
        return None
    return {axis % len(shape) for axis in axes if isinstance(axis, int)} if shape else set()


def without_minus_one(
    table: SymbolTable, result: Tensor, wanted: Shape, before: Shape | None
) -> Shape:
    """Return sizes with symbols of the result for numbers that may be -1, which means the rest.

    A number that is computed from data may be -1, unless an axis has that size already.

    Args:
        table: Says which symbols are numbers that are computed from data.
        result: The tensor that has these sizes.
        wanted: Sizes that a program asks for.
        before: The shape that the operation was given.
    """
    sizes = {name for size in before or () for name in symbols_of(size)}
    return tuple(
        size
        if symbols_of(size) <= sizes or table.is_made_of_sizes(size)
        else table.new_symbol(result, axis)
        for axis, size in enumerate(wanted)
    )


def axis_of(tensor: Tensor, rank: int) -> int | None:
    """Return the axis that a tensor says, counted from the front; None if it is not known."""
    value = tensor.value
    return value[0] % rank if value and isinstance(value[0], int) else None


def is_number(value: tuple[Size, ...] | None) -> bool:
    """Return whether numbers are a single one that is known."""
    return value is not None and len(value) == 1 and isinstance(value[0], int)


def first_batch_axis(shape: Shape) -> Sharded | None:
    """Return the state by the first axis that counts samples, or None if there is none."""
    for axis in range(len(shape)):
        if is_shardable(shape, Sharded(axis)):
            return Sharded(axis)
    return None


def all_first(tensors: Sequence[Tensor]) -> bool:
    """Return whether the first axis of all tensors counts samples."""
    return all(is_shardable(tensor.shape, FIRST) for tensor in tensors)


def alike(node: Node) -> Iterator[tuple[Size, Size]]:
    """Yield the sizes of inputs that are equal, counted from the last axis, or 1."""
    known = [tensor.shape for tensor in node.inputs if tensor.shape is not None]
    for shape in known[1:]:
        yield from zip(reversed(known[0]), reversed(shape), strict=False)


def leading(node: Node) -> Iterator[tuple[Size, Size]]:
    """Yield the sizes of the second input, which are the first ones of the first input."""
    first, second = (tensor.shape for tensor in node.inputs[:2])
    yield from zip(first or (), second or (), strict=False)
