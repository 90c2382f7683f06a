"""Numbers in integer tensors that a program makes of sizes, and the answers of conditions on them.

Tensors of rank 0 and 1 have their numbers in ``Tensor.value``. Those of a higher rank, such as
paddings, are read back from the operations that join, reshape and transpose them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evener.graph.constants import constant_array
from evener.graph.dims import Size
from evener.graph.nodes import Tensor
from evener.ops.known import UnknownError
from evener.ops.registry import Matrix, operation

LARGEST_VALUE = 64
"""Integer tensors with more elements have no symbolic value."""


LARGEST = 256
"""Matrices with more numbers are not read."""


def matrix_of(tensor: Tensor) -> Matrix:
    """Return an array of the symbolic numbers in a tensor of integers, if they are known."""
    constant, reader = constant_array(tensor), operation(tensor.node.op).matrix
    found: Matrix | None = None
    if constant is not None:
        found = constant.astype(object) if constant.size <= LARGEST else None
    elif tensor.rank in (0, 1) and tensor.value is not None:
        found = matrix_with(tensor.value, () if tensor.rank == 0 else (len(tensor.value),))
    elif reader is not None and tensor.dtype.is_integer:
        found = reader(tensor.node)
    if found is None:
        raise UnknownError
    return found


def matrix_with(numbers: Sequence[Size], shape: Sequence[int]) -> Matrix:
    """Return an array of numbers in a shape."""
    found = np.empty(len(numbers), dtype=object)
    found[:] = list(numbers)
    return found.reshape(tuple(shape))


def truths_of(tensor: Tensor) -> tuple[bool, ...] | None:
    """Return which of some conditions hold, or None if it is not known before the step runs."""
    rule = operation(tensor.node.op).truth
    return None if rule is None else rule(tensor.node)


def truth_of(tensor: Tensor) -> bool | None:
    """Return whether a condition holds, or None if it is not known before the step runs."""
    truths = truths_of(tensor)
    return truths[0] if truths is not None and len(truths) == 1 else None
