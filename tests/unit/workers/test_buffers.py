"""Memory that is used again, and only when nobody has it."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tensorflow as tf

from evener.workers.mesh import Buffers


def address(array: np.ndarray) -> int:
    return array.ctypes.data


@pytest.mark.parametrize("shape", [(3,), (), (200, 300)])
def test_arrays_are_aligned(shape: tuple[int, ...]) -> None:
    for dtype in (np.float32, np.int8, np.complex128):
        made = Buffers().take(shape, dtype)
        assert (made.shape, made.dtype) == (shape, np.dtype(dtype))
        assert address(made) % 64 == 0


def test_memory_is_used_again_when_nobody_has_it() -> None:
    buffers = Buffers()
    first = buffers.take([100], np.float32)
    where = address(first)
    view = first.reshape(10, 10)[2:]
    del first
    other = buffers.take([100], np.float32)
    assert address(other) != where
    del view
    assert address(buffers.take([200], np.int16)) == where


def test_memory_of_a_tensor_is_not_used_again() -> None:
    buffers = Buffers()
    addresses: list[int] = []

    def make() -> np.ndarray:
        made = buffers.take([100_000], np.float32)
        addresses.append(address(made))
        made[:] = 1.0
        return made

    @tf.function
    def step() -> tf.Tensor:
        return tf.numpy_function(make, [], tf.float32)

    tensor = step()
    ctypes.c_float.from_address(addresses[0]).value = 5.0
    assert tensor.numpy()[0] == 5.0, "TensorFlow has copied it"
    for _ in range(3):
        buffers.take([100_000], np.float32)[:] = 2.0
    assert tensor.numpy()[:2].tolist() == [5.0, 1.0]


def test_memory_that_nobody_asks_for_is_given_up() -> None:
    buffers = Buffers()
    for size in range(3000):
        buffers.take([size], np.int8)
    assert sum(map(len, buffers._kept.values())) <= 1001
