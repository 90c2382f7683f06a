"""Axes and sizes: facts and rules that several families of operations share."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence

from evener.graph.dims import Size, symbols_of
from evener.graph.nodes import Node, Tensor
from evener.graph.symbols import SymbolTable
from evener.ops.decision import Decide, Decision
from evener.ops.known import rank_of, sharded
from evener.ops.registry import InferRule, Shape, Shapes
from evener.ops.states import FIRST, REPLICATED, Sharded, State, is_first, is_shardable


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
    """Return the axes over which a reduction goes, counted from the front."""
    if axes is None or not all(isinstance(axis, int) for axis in axes):
        return None
    return {axis % len(shape) for axis in axes if isinstance(axis, int)} if shape else set()


def replicated(count: int) -> tuple[State, ...]:
    """Return the states of inputs that are the same for all parts."""
    return (REPLICATED,) * count


def beside(node: Node, states: Sequence[State], axes: Container[int]) -> Decision | None:
    """Return the decision of an operation that works along some axes of its first input.

    The rows along other axes are those of the results.
    """
    state = sharded(states[0])
    if state.axis in axes:
        return None
    wanted = (state, *replicated(len(states) - 1))
    return Decision(inputs=wanted, outputs=(state,) * len(node.outputs))


def beside_last(count: int) -> Decide:
    """Return the rule of operations that work along the last axes of their first input."""

    def decide(node: Node, states: Sequence[State]) -> Decision | None:
        return beside(node, states, last_axes(node.inputs[0], count))

    return decide


def last_axes(tensor: Tensor, count: int) -> range:
    """Return the last axes of a tensor, from the front."""
    rank = rank_of(tensor)
    return range(rank - count, rank)


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


def first_batch_axis(shape: Shape) -> Sharded | None:
    """Return the state by the first axis that counts samples, or None if there is none."""
    for axis in range(len(shape)):
        if is_shardable(shape, Sharded(axis)):
            return Sharded(axis)
    return None


def all_first(tensors: Sequence[Tensor]) -> bool:
    """Return whether the first axis of all tensors counts samples."""
    return all(is_shardable(tensor.shape, FIRST) for tensor in tensors)


def per_image_of(*of_images: int) -> Decide:
    """Return the rule of operations on the images of some inputs, by their indices."""

    def decide(node: Node, states: Sequence[State]) -> Decision | None:
        return per_image(node, states, of_images)

    return decide


def per_image(node: Node, states: Sequence[State], of_images: Collection[int]) -> Decision | None:
    """Return the decision of an operation on the rows of some inputs, and other inputs as a whole.

    Args:
        node: The operation.
        states: States of its inputs, of which one of these has rows of the batch.
        of_images: Indices of the inputs whose first axis counts samples.
    """
    if not any(is_first(states[k]) for k in of_images):
        return None
    if not all_first([node.inputs[k] for k in of_images]):
        return None
    return Decision(
        inputs=tuple(FIRST if k in of_images else REPLICATED for k in range(len(states))),
        outputs=(FIRST,) * len(node.outputs),
        needs_samples=True,
    )


def alike(node: Node) -> Iterator[tuple[Size, Size]]:
    """Yield the sizes of inputs that are equal, counted from the last axis, or 1."""
    known = [tensor.shape for tensor in node.inputs if tensor.shape is not None]
    for shape in known[1:]:
        yield from zip(reversed(known[0]), reversed(shape), strict=False)


def leading(node: Node) -> Iterator[tuple[Size, Size]]:
    """Yield the sizes of the second input, which are the first ones of the first input."""
    first, second = (tensor.shape for tensor in node.inputs[:2])
    yield from zip(first or (), second or (), strict=False)
