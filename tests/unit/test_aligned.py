"""Copies that TensorFlow takes as they are."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from evener._tf_private.tensors import ALIGNMENT, aligned_copy, as_tensor


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (300, 200)])
def test_a_copy_has_the_values_and_is_aligned(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    copy = aligned_copy(array.T)
    np.testing.assert_array_equal(copy, array.T)
    assert copy.ctypes.data % ALIGNMENT == 0 or not copy.size


def test_tensorflow_does_not_copy_it_again() -> None:
    copy = aligned_copy(np.ones([300, 200], np.float32))
    tensor = as_tensor(copy)
    copy[0, 0] = 5.0
    assert float(tensor[0, 0]) == 5.0


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.int64, tf.bool, tf.uint8])
def test_tensors_of_all_types_have_the_values(dtype: tf.DType) -> None:
    array = np.array([0, 1, 1]).astype(dtype.as_numpy_dtype)
    for given in (aligned_copy(array), array):
        tensor = as_tensor(given)
        assert tensor.dtype == dtype
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_texts_are_copied() -> None:
    texts = np.array([b"a", b"b"], object)
    copy = aligned_copy(texts)
    texts[0] = b"c"
    assert as_tensor(copy).numpy().tolist() == [b"a", b"b"]
