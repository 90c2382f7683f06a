"""Numbers in integer tensors that a program makes of sizes, and the answers of conditions on them.

Tensors of rank 0 and 1 have their numbers in ``Tensor.value``. Those of a higher rank, such as
paddings, are read back from the operations that join, reshape and transpose them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evener.graph.dims import Size
from evener.graph.nodes import Tensor, constant_array
from evener.ops.registry import Matrix, operation

LARGEST_VALUE = 64
"""Integer tensors with more elements have no symbolic value."""


LARGEST = 256
"""Matrices with more numbers are not read."""


def matrix_of(tensor: Tensor) -> Matrix | None:
    """Return an array of the symbolic numbers in a tensor of integers, or None."""
    constant = constant_array(tensor)
    if constant is not None:
        return constant.astype(object) if constant.size <= LARGEST else None
    if tensor.rank in (0, 1) and tensor.value is not None:
        return matrix_with(tensor.value, () if tensor.rank == 0 else (len(tensor.value),))
    reader = operation(tensor.node.op).matrix
    if reader is None or not tensor.dtype.is_integer:
        return None
    return reader(tensor.node)


def matrix_with(numbers: Sequence[Size], shape: Sequence[int]) -> Matrix:
    """Return an array of numbers in a shape."""
    found = np.empty(len(numbers), dtype=object)
    found[:] = list(numbers)
    return found.reshape(tuple(shape))


def matrices_of(tensors: Sequence[Tensor]) -> list[Matrix] | None:
    """Return the numbers in each of some tensors; None if one of them is not known."""
    found = [matrix_of(tensor) for tensor in tensors]
    known = [array for array in found if array is not None]
    return known if len(known) == len(found) else None


def truth_of(tensor: Tensor) -> bool | None:
    """Return whether a condition holds, or None if it is not known before the step runs."""
    rule = operation(tensor.node.op).truth
    return None if rule is None else rule(tensor.node)
