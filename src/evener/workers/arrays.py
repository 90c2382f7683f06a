"""Lists of arrays as bytes: a description in JSON, then the elements. No code is executed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import ml_dtypes
import numpy as np

_LENGTH_BYTES = 8


def pack(groups: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Return lists of arrays, of numbers or of byte strings, as bytes.

    >>> unpack(pack([[np.arange(3), np.ones([1, 2])], []]))
    [[array([0, 1, 2]), array([[1., 1.]])], []]
    """
    kinds = [[(_name(array), array.shape) for array in group] for group in groups]
    head = json.dumps(kinds).encode()
    parts = [len(head).to_bytes(_LENGTH_BYTES, "big"), head]
    for group in groups:
        parts += [_data(array) for array in group]
    return np.frombuffer(b"".join(parts), np.uint8)


def unpack(packed: np.ndarray) -> list[list[np.ndarray]]:
    """Return the lists of arrays that `pack` wrote."""
    data = packed.tobytes()
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    groups: list[list[np.ndarray]] = []
    for kinds in json.loads(data[_LENGTH_BYTES:begin]):
        groups.append([])
        for name, shape in kinds:
            found, begin = _read(data, begin, name, shape)
            groups[-1].append(found)
    return groups


def _name(array: np.ndarray) -> str:
    return "strings" if array.dtype == object else array.dtype.name


def _data(array: np.ndarray) -> bytes:
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    texts = array.reshape(-1).tolist()
    return b"".join(len(text).to_bytes(_LENGTH_BYTES, "big") + text for text in texts)


def _read(data: bytes, begin: int, name: str, shape: Sequence[int]) -> tuple[np.ndarray, int]:
    count = int(np.prod(shape, dtype=np.int64))
    if name != "strings":
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        end = begin + count * dtype.itemsize
        return np.frombuffer(data[begin:end], dtype).reshape(shape).copy(), end
    texts = np.empty(count, object)
    for number in range(count):
        length = int.from_bytes(data[begin : begin + _LENGTH_BYTES], "big")
        begin += _LENGTH_BYTES
        texts[number] = data[begin : begin + length]
        begin += length
    return texts.reshape(shape), begin


def lengths_of(array: np.ndarray) -> np.ndarray:
    """Return the lengths of byte strings."""
    return np.asarray([len(text) for text in array.reshape(-1)], np.int64).reshape(array.shape)


def strings_of(lengths: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Split concatenated bytes into byte strings of the given lengths."""
    ends = np.cumsum(lengths.reshape(-1))
    found = np.empty(lengths.size, object)
    found[:] = [
        texts[end - length : end].tobytes()
        for end, length in zip(ends, lengths.reshape(-1), strict=True)
    ]
    return found.reshape(lengths.shape)
