"""Fingerprints of batches and of states: workers that differ are noticed, and told apart."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evener.errors import RunError
from evener.workers.faults import Summary

_FIRST, _EVERY = 3, 64
"""The first calls of a program are compared, and each of so many after."""

Arrays = Mapping[str, np.ndarray | None]
"""Values of variables by name; None for those that are gone."""


def is_compared(call: int) -> bool:
    """Return whether the batches of a call are compared.

    >>> [call for call in range(200) if is_compared(call)]
    [0, 1, 2, 64, 128, 192]
    """
    return call < _FIRST or call % _EVERY == 0


def fingerprint(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return a checksum of each array, int64 vector; one of its type, shape and elements."""
    return np.asarray([_checksum(array) for array in arrays], np.int64)


def digest(state: Arrays) -> int:
    """Return one checksum of a state."""
    arrays = [np.empty(0) if array is None else array for array in state.values()]
    return zlib.crc32(fingerprint(arrays).tobytes())


def summarize(state: Arrays) -> Summary:
    """Return a summary that distinguishes states, and from which their distance is known."""
    return {
        name: (_checksum(array), *_lengths(array))
        for name, array in state.items()
        if array is not None
    }


def _lengths(array: np.ndarray) -> tuple[float, float]:
    """Return the projection of an array on a fixed direction, and its norm; NaN counts as 0."""
    if array.dtype == object:
        return float(_checksum(array)), 1.0
    flat = np.nan_to_num(array.reshape(-1).astype(np.float64))
    signs = np.random.default_rng(0).integers(0, 2, flat.size, np.int8) * 2.0 - 1.0
    return float(flat @ signs), float(np.linalg.norm(flat))


def check_fingerprints(found: Sequence[np.ndarray], members: Sequence[int], call: int) -> None:
    """Raise RUN-096 if the fingerprints of a batch, one of each member, differ."""
    kinds = Counter(tuple(each.tolist()) for each in found)
    if len(kinds) == 1:
        return
    [(usual, count), (_, second), *_] = kinds.most_common()
    odd = [k for k, each in zip(members, found, strict=True) if tuple(each.tolist()) != usual]
    names = ", ".join(map(str, odd))
    if count > second:
        what = f"Worker {names} sees" if len(odd) == 1 else f"The workers {names} see"
        what += " other data than the others"
    else:
        what = f"The workers {', '.join(map(str, members))} see different data"
    raise RunError(
        "RUN-096",
        f"{what}, first noticed in batch {call + 1}.",
        why="Each worker computes its rows of the same batch. Their programs draw from sources "
        "that nobody seeded, read other files, or split the data among the workers themselves.",
        fix="Give every worker the whole data in the same order: seed all shuffles, and leave out "
        "dataset.shard() for workers.",
    )


def _checksum(array: np.ndarray) -> int:
    head = zlib.crc32(f"{array.dtype.name} {array.shape}".encode())
    if array.dtype == object:
        return zlib.crc32(b"\0".join(array.reshape(-1).tolist()), head)
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return zlib.crc32(flat, head)
