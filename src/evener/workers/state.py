"""State of a worker: the variables of its steps, and checksums that show workers that differ."""

from __future__ import annotations

import weakref
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener.errors import RunError
from evener.workers.faults import Summary, other_program
from evener.workers.mesh import pack, unpack

_FIRST, _EVERY = 3, 64
"""The first calls of a program are compared, and each of so many after."""

_SMALL_BYTES = 1024
"""Most bytes of a variable whose value is kept behind every call: metrics, counters, seeds."""
_GONE = np.empty(0, np.bool_)

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


def check_fingerprints(
    fingerprints: Sequence[np.ndarray], members: Sequence[int], call: int
) -> None:
    """Raise RUN-096 if the fingerprints of a batch, one of each member, differ."""
    kinds = [tuple(each.tolist()) for each in fingerprints]
    # Those of a call that was finished in an earlier view are of the members of that.
    if len(set(kinds)) == 1:
        return
    [(usual, count), (_, second), *_] = Counter(kinds).most_common()
    odd = [k for k, kind in zip(members, kinds, strict=True) if kind != usual]
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
    head = zlib.crc32(f"{array.dtype.str} {array.shape}".encode())
    if array.dtype == object:
        return zlib.crc32(b"\0".join(array.reshape(-1).tolist()), head)
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return zlib.crc32(flat, head)


class Variables:
    """Variables of the steps so far, which are traced in the same order by all workers."""

    def __init__(self) -> None:
        self._all: dict[int, weakref.ref[tf.Variable]] = {}
        self._small: dict[int, weakref.ref[tf.Variable]] = {}
        self._large: set[int] = set()
        self._lists: list[tuple[weakref.ref[Any], str]] = []

    def add_list(self, owner: object, name: str) -> None:
        """Add an attribute of an object: a list of arrays, or None."""
        if all(known() is not owner for known, _ in self._lists):
            self._lists.append((weakref.ref(owner), name))

    def add(self, variable: tf.Variable, *, is_written: bool) -> None:
        handle, reference = id(variable.handle), weakref.ref(variable)
        known = self._all.get(handle)
        if known is None or known() is None:
            self._all[handle] = reference
        num_bytes = variable.dtype.size * (variable.shape.num_elements() or 0)
        if is_written and num_bytes <= _SMALL_BYTES:
            self._small[handle] = reference
        elif is_written:
            self._large.add(handle)

    def is_large(self, handle: Any) -> bool:
        """Return whether a handle is that of a variable that steps write, and that is not small."""
        return id(handle) in self._large

    def values(self) -> tuple[np.ndarray | None, ...]:
        """Return the values of all, then the lists as bytes; None for those that are gone."""
        values = [
            None if variable is None else np.asarray(variable.numpy())
            for variable in _alive(self._all)
        ]
        lists = [getattr(owner(), name, None) for owner, name in self._lists]
        return (*values, *(pack([each]) if each else None for each in lists))

    def by_name(self) -> dict[str, np.ndarray | None]:
        """Return the values of all by their names, which are made different by numbers."""
        names = ["gone" if each is None else each.name for each in _alive(self._all)]
        names += [f"{name} of {type(owner()).__name__}" for owner, name in self._lists]
        pairs = zip(names, self.values(), strict=True)
        return {f"{name} ({number})": value for number, (name, value) in enumerate(pairs)}

    def assign(self, values: Sequence[np.ndarray | None]) -> None:
        """Assign what `values` returned to all; RUN-094 if they are not those of this program."""
        count = len(self._all)
        if len(values) != count + len(self._lists):
            raise other_program(f"{len(values)} variables instead of {count + len(self._lists)}")
        for variable, value in zip(_alive(self._all), values[:count], strict=True):
            _assign(variable, value)
        for (owner, name), value in zip(self._lists, values[count:], strict=True):
            if value is not None and owner() is not None:
                setattr(owner(), name, unpack(value)[0])

    def small_values(self) -> list[np.ndarray]:
        """Return the values of the small ones that steps write; nothing of those that are gone."""
        return [
            _GONE if variable is None else np.asarray(variable.numpy())
            for variable in _alive(self._small)
        ]

    def assign_small(self, values: Sequence[np.ndarray]) -> None:
        """Assign what `small_values` returned; RUN-094 if it is not of this program."""
        if len(values) > len(self._small):
            raise other_program(f"{len(values)} small variables instead of {len(self._small)}")
        for variable, value in zip(_alive(self._small), values, strict=False):
            _assign(variable, value if value.size else None)


def _alive(
    references: dict[int, weakref.ref[tf.Variable]],
) -> Iterator[tf.Variable | None]:
    return (reference() for reference in references.values())


def _assign(variable: tf.Variable | None, value: np.ndarray | None) -> None:
    if variable is None or value is None:
        return
    if not variable.shape.is_compatible_with(value.shape):
        raise other_program(f"{variable.name} of shape {list(value.shape)}")
    variable.assign(value)
