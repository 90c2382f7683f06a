"""Shapes, numbers and states that a rule asks for: where one is not known, nothing follows.

    @shape_rule("Transpose")
    def _transpose_shape(table, node):
        shape, order = shape_of(node.inputs[0]), integers_of(node.inputs[1])
        return [tuple(shape[axis] for axis in order)]

A rule is left by `UnknownError`, and then says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.dims import Size
from evener.graph.nodes import Tensor
from evener.ops.states import UNSET, Sharded, State


class UnknownError(Exception):
    """Something that a rule needs is not known before the step runs, or is not so."""


def shape_of(tensor: Tensor) -> tuple[Size, ...]:
    """Return the symbolic shape of a tensor."""
    if tensor.shape is None:
        raise UnknownError
    return tensor.shape


def rank_of(tensor: Tensor) -> int:
    """Return the number of axes of a tensor."""
    return len(shape_of(tensor))


def numbers_of(tensor: Tensor) -> tuple[Size, ...]:
    """Return the symbolic numbers in a tensor."""
    if tensor.value is None:
        raise UnknownError
    return tensor.value


def integers_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the numbers in a tensor, if they are the same in every step."""
    numbers = numbers_of(tensor)
    found = tuple(number for number in numbers if isinstance(number, int))
    if len(found) < len(numbers):
        raise UnknownError
    return found


def axis_of(tensor: Tensor, rank: int) -> int:
    """Return the axis that the number in a tensor means, counted from the front."""
    axes = integers_of(tensor)
    if len(axes) != 1:
        raise UnknownError
    return axes[0] % rank


def sharded(state: State) -> Sharded:
    """Return a state that says which rows a part has."""
    if not isinstance(state, Sharded):
        raise UnknownError
    return state


def first_sharded(states: Sequence[State]) -> Sharded:
    """Return the first of some states that says which rows a part has."""
    return sharded(next((state for state in states if isinstance(state, Sharded)), UNSET))
