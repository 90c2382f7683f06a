"""The numbers in small integer matrices that a program makes of sizes, such as paddings.

Tensors of rank 0 and 1 have their numbers in ``Tensor.value``. Those of a higher rank are read back
from the operations that join, reshape and transpose them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from evener.graph.dims import Size
from evener.graph.nodes import Node, Tensor, constant_array

LARGEST = 256
"""Matrices with more numbers are not read."""
Matrix: TypeAlias = "np.ndarray[Any, Any]"


def matrix_of(tensor: Tensor) -> Matrix | None:
    """Return an array of the symbolic numbers in a tensor of integers, or None."""
    constant = constant_array(tensor)
    if constant is not None:
        return constant.astype(object) if constant.size <= LARGEST else None
    if tensor.rank in (0, 1) and tensor.value is not None:
        return _array(tensor.value, () if tensor.rank == 0 else (len(tensor.value),))
    reader = _READERS.get(tensor.node.op)
    if reader is None or not tensor.dtype.is_integer:
        return None
    return reader(tensor.node)


def _array(numbers: Sequence[Size], shape: Sequence[int]) -> Matrix:
    found = np.empty(len(numbers), dtype=object)
    found[:] = list(numbers)
    return found.reshape(tuple(shape))


def _all_of(tensors: Sequence[Tensor]) -> list[Matrix] | None:
    found = [matrix_of(tensor) for tensor in tensors]
    known = [array for array in found if array is not None]
    return known if len(known) == len(found) else None


def _pack(node: Node) -> Matrix | None:
    arrays = _all_of(node.inputs)
    if arrays is None or len({array.shape for array in arrays}) != 1:
        return None
    return np.stack(arrays, node.int_attr("axis"))


def _concat(node: Node) -> Matrix | None:
    arrays, axis = _all_of(node.inputs[:-1]), node.inputs[-1].value
    if arrays is None or axis is None or not isinstance(axis[0], int):
        return None
    return np.concatenate(arrays, axis[0])


def _reshape(node: Node) -> Matrix | None:
    array, shape = matrix_of(node.inputs[0]), node.outputs[0].shape
    if array is None or shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape) or math.prod(sizes) != array.size:
        return None
    return array.reshape(sizes)


def _transpose(node: Node) -> Matrix | None:
    array, order = matrix_of(node.inputs[0]), node.inputs[1].value
    if array is None or order is None or not all(isinstance(k, int) for k in order):
        return None
    return array.transpose([k for k in order if isinstance(k, int)])


def _slice(node: Node) -> Matrix | None:
    array, begin, size = matrix_of(node.inputs[0]), node.inputs[1].value, node.inputs[2].value
    if array is None or begin is None or size is None:
        return None
    taken: list[slice] = []
    for start, count in zip(begin, size, strict=True):
        if not isinstance(start, int) or not isinstance(count, int) or start < 0:
            return None
        taken.append(slice(start, None if count == -1 else start + count))
    return array[tuple(taken)]


def _fill(node: Node) -> Matrix | None:
    shape, number = node.outputs[0].shape, node.inputs[1].value
    if shape is None or number is None:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape) or math.prod(sizes) > LARGEST:
        return None
    return _array(number * math.prod(sizes), sizes)


def _same(node: Node) -> Matrix | None:
    return matrix_of(node.inputs[0])


_READERS: dict[str, Callable[[Node], Matrix | None]] = {
    "Pack": _pack,
    "ConcatV2": _concat,
    "Reshape": _reshape,
    "ExpandDims": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Fill": _fill,
    "Identity": _same,
    "StopGradient": _same,
}
