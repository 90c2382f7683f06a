"""Memory for tensors: arrays that TensorFlow takes as they are, and zeros that take none."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

ALIGNMENT = 64
"""TensorFlow takes arrays that begin at such an address as they are, and copies others."""

_PLAIN = {2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Types of the same size, which every library reads."""
_UNCOUNTED = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Pages that do not count as memory of the process before they are written."""


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Return a copy that `as_tensor` takes without copying it again.

    Args:
        array: Array; one of Python's objects is copied as NumPy copies it.
    """
    if array.dtype.hasobject:
        return np.array(array, copy=True)
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    copy = aligned(memory, array.nbytes).view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """Return a tensor on the host; of an aligned array of numbers, in the same memory.

    The array must not change while there is the tensor.

    Args:
        array: Array.
    """
    is_aligned = array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous
    if is_aligned and array.dtype.kind in "biufc" and array.flags.writeable and array.size:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    with tf.device("cpu:0"):
        return tf.convert_to_tensor(array)


def unwritten_zeros(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor | None:
    """Return zeros on the host that take no memory until they are written.

    They are pages that the system promises, and gives when they are written. None if it does not
    promise so many, knows no such pages, or the numbers are not of 2, 4 or 8 bytes.

    Args:
        shape: Shape of the tensor.
        dtype: Type of its numbers.
    """
    num_bytes = math.prod(shape) * dtype.size
    plain = _PLAIN.get(dtype.size)
    if not num_bytes or plain is None or not hasattr(mmap, "MAP_PRIVATE"):
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _UNCOUNTED
    try:
        pages = mmap.mmap(-1, num_bytes, flags=flags)
    except OSError:
        return None
    array = np.frombuffer(pages, plain)[: num_bytes // np.dtype(plain).itemsize]
    tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.reshape(tf.bitcast(tensor, dtype), shape)


def aligned(memory: np.ndarray, num_bytes: int) -> np.ndarray:
    """Return the part of some memory that begins at such an address.

    Args:
        memory: Bytes, as many as asked for and those of the alignment.
        num_bytes: Number of bytes.
    """
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + num_bytes]
