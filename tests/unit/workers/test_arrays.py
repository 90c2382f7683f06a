"""Lists of arrays as bytes, and back."""

from __future__ import annotations

from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from evener.workers.mesh import pack, unpack

NUMBERS = (np.bool_, np.int8, np.uint64, np.float16, np.float32, np.float64, np.complex128)
ARRAYS = st.sampled_from(NUMBERS).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=3))
)


def hold(expected: np.ndarray, found: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist() or found.tobytes() == expected.tobytes()


@given(st.lists(st.lists(ARRAYS, max_size=3), max_size=3))
def test_numbers(groups: list[list[np.ndarray]]) -> None:
    found = unpack(pack(groups))
    assert [len(group) for group in found] == [len(group) for group in groups]
    for expected, actual in zip(chain(*groups), chain(*found), strict=True):
        hold(expected, actual)
        assert actual.flags.writeable


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_types_that_numpy_lacks(dtype: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    hold(array, unpack(pack([[array]]))[0][0])


@given(st.lists(st.binary(max_size=4), max_size=4))
def test_texts(texts: list[bytes]) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    hold(array, unpack(pack([[array, np.arange(2)]]))[0][0])


def test_parts_of_arrays() -> None:
    array = np.arange(12).reshape(3, 4)
    for part in (array.T, array[::2, 1::2], array[::-1]):
        hold(part, unpack(pack([[part]]))[0][0])
