"""Mesh of the workers of one view: sums and joins of arrays, with the same bits on every worker.

::

    array of each worker      a b c      d e f      g h i

    1. each adds one chunk    a+d+g      b+e+h      c+f+i       in the order of the workers
    2. each sends its sum     all        all        all

Every worker sends and receives each byte twice, as in a ring, but in two rounds for any number of
workers.
"""

from __future__ import annotations

import itertools
import json
import math
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from evener._tf_private.tensors import ALIGNMENT, aligned
from evener.workers.wire import Wire, bytes_of, other_step

_LENGTH_BYTES = 8
_OLD = 1000
"""Arrays after which memory that nobody has asked for is given up."""
_REFERENCES = 3
"""References to memory that nobody else has: the list, a variable, the argument of the count."""
MERGES: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "all": np.logical_and,
    "any": np.logical_or,
}
_SMALL_BYTES = 1 << 15
"""Bytes of arrays that are sent whole to everyone, in one round instead of two."""
_SMALL_BYTES_TO_ALL = 1 << 17
"""The same, times the number of those that they are sent to."""


def pack(groups: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Return lists of arrays, of numbers or of byte strings, as bytes.

    A description in JSON comes first, then the elements: no code is executed when it is read.

    >>> unpack(pack([[np.arange(3), np.ones([1, 2])], []]))
    [[array([0, 1, 2]), array([[1., 1.]])], []]
    """
    kinds = [
        [("strings" if array.dtype == object else array.dtype.name, array.shape) for array in group]
        for group in groups
    ]
    head = json.dumps(kinds).encode()
    parts = [len(head).to_bytes(_LENGTH_BYTES, "big"), head]
    for array in itertools.chain.from_iterable(groups):
        if array.dtype != object:
            parts.append(np.ascontiguousarray(array).tobytes())
            continue
        for text in array.reshape(-1).tolist():
            parts += [len(text).to_bytes(_LENGTH_BYTES, "big"), text]
    return np.frombuffer(b"".join(parts), np.uint8)


def unpack(packed: np.ndarray) -> list[list[np.ndarray]]:
    data = packed.tobytes()
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    groups: list[list[np.ndarray]] = []
    for kinds in json.loads(data[_LENGTH_BYTES:begin]):
        groups.append([])
        for name, shape in kinds:
            count = int(np.prod(shape, dtype=np.int64))
            if name == "strings":
                array = np.empty(count, object)
                for number in range(count):
                    length = int.from_bytes(data[begin : begin + _LENGTH_BYTES], "big")
                    begin += _LENGTH_BYTES
                    array[number] = data[begin : begin + length]
                    begin += length
            else:
                dtype = np.dtype(getattr(ml_dtypes, name, name))
                end = begin + count * dtype.itemsize
                array = np.frombuffer(data[begin:end], dtype).copy()
                begin = end
            groups[-1].append(array.reshape(shape))
    return groups


class Buffers:
    """Memory for arrays, used again as soon as nobody has them any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, list[np.ndarray]] = {}
        self._used: dict[int, int] = {}
        self._count = 0

    def take(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return an uninitialised array of numbers, aligned for TensorFlow."""
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            self._count += 1
            self._used[num_bytes] = self._count
            kept = self._kept.setdefault(num_bytes, [])
            for memory in kept:
                if sys.getrefcount(memory) == _REFERENCES:
                    break
            else:
                for size in [s for s, used in self._used.items() if used < self._count - _OLD]:
                    del self._kept[size], self._used[size]
                memory = np.empty(num_bytes + ALIGNMENT, np.uint8)
                kept.append(memory)
        return aligned(memory, num_bytes).view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class _Slice:
    array: int
    start: int
    stop: int


class Mesh(Wire):
    def __init__(
        self, index: int, connections: Mapping[int, socket.socket], *, patience_seconds: float
    ) -> None:
        self.members = tuple(sorted([index, *connections]))
        self._index = index
        super().__init__(connections, patience_seconds=patience_seconds)
        self._buffers = Buffers()

    def reduce(self, label: str, arrays: Sequence[np.ndarray], merge: str) -> list[np.ndarray]:
        """Combine arrays of one type and of the same shapes, by a key of `MERGES`."""
        if not self.peers:
            self.check()
            return list(arrays)
        flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
        num_bytes = sum(array.nbytes for array in flat)
        is_small = num_bytes <= min(_SMALL_BYTES, _SMALL_BYTES_TO_ALL // len(self.peers))
        combine = self._reduce_small if is_small else self._reduce_large
        # Gradients that overflow are ordinary under loss scaling, and TensorFlow says nothing.
        with np.errstate(all="ignore"):
            results = combine(label, flat, MERGES[merge])
        return [result.reshape(a.shape) for result, a in zip(results, arrays, strict=True)]

    def gather(self, label: str, array: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of all members, in their order, of one type and number of axes."""
        own = np.ascontiguousarray(array)
        shape = np.asarray(own.shape, np.int64)
        shapes = {peer: np.empty_like(shape) for peer in self.peers}
        flat: dict[int, np.ndarray] = {}

        def room(peer: int, count: int) -> list[memoryview]:
            flat[peer] = np.empty((count - shape.nbytes) // own.itemsize, own.dtype)
            return [bytes_of(shapes[peer]), bytes_of(flat[peer])]

        sent = [bytes_of(shape), bytes_of(own.reshape(-1))]
        self.exchange(label, dict.fromkeys(self.peers, sent), room)
        others = {peer: flat[peer].reshape(shapes[peer]) for peer in self.peers}
        return [own if member == self._index else others[member] for member in self.members]

    def gather_json(self, label: str, value: Any) -> dict[int, Any]:
        texts = self.gather(label, np.frombuffer(json.dumps(value).encode(), np.uint8))
        values = (json.loads(text.tobytes()) for text in texts)
        return dict(zip(self.members, values, strict=True))

    def broadcast(self, label: str, arrays: list[np.ndarray], root: int) -> list[np.ndarray]:
        is_root = root == self._index
        parcels = dict.fromkeys(self.peers, pack([arrays])) if is_root else {}
        received = self.deliver(label, parcels)
        return arrays if is_root else unpack(received[root])[0]

    def _reduce_small(
        self, label: str, flat: Sequence[np.ndarray], merge: Callable[..., Any]
    ) -> list[np.ndarray]:
        """Send all arrays to all members, and combine them everywhere in the same order."""
        whole = np.concatenate(flat) if len(flat) > 1 else flat[0]
        total: np.ndarray | None = None
        for received in self.gather(f"{label} {whole.size}", whole):
            total = received.copy() if total is None else merge(total, received)
        assert total is not None
        total = total.astype(whole.dtype, copy=False)
        cuts = np.cumsum([array.size for array in flat])[:-1]
        return [np.ascontiguousarray(part) for part in np.split(total, cuts)]

    def _reduce_large(
        self, label: str, flat: Sequence[np.ndarray], merge: Callable[..., Any]
    ) -> list[np.ndarray]:
        slices = dict(
            zip(self.members, _chunks([a.size for a in flat], len(self.members)), strict=True)
        )
        mine = slices[self._index]
        take = self._buffers.take
        results = [take(array.shape, array.dtype) for array in flat]
        # The first round brings this worker's chunk of every member.
        received = {
            peer: [take([part.stop - part.start], flat[part.array].dtype) for part in mine]
            for peer in self.peers
        }
        self._exchange_fixed(
            f"{label} 1",
            {peer: _views(flat, slices[peer]) for peer in self.peers},
            {peer: [bytes_of(array) for array in arrays] for peer, arrays in received.items()},
        )
        for number, part in enumerate(mine):
            own = flat[part.array][part.start : part.stop]
            terms = [own if k == self._index else received[k][number] for k in self.members]
            total = results[part.array][part.start : part.stop]
            merge(terms[0], terms[1], out=total)
            for term in terms[2:]:
                merge(total, term, out=total)
        self._exchange_fixed(
            f"{label} 2",
            dict.fromkeys(self.peers, _views(results, mine)),
            {peer: _views(results, slices[peer]) for peer in self.peers},
        )
        return results

    def _exchange_fixed(
        self,
        label: str,
        sends: Mapping[int, Sequence[memoryview]],
        receives: Mapping[int, Sequence[memoryview]],
    ) -> None:
        def room(peer: int, count: int) -> Sequence[memoryview]:
            if count != sum(view.nbytes for view in receives[peer]):
                raise other_step(label)
            return receives[peer]

        self.exchange(label, sends, room)


def _chunks(sizes: Sequence[int], count: int) -> list[list[_Slice]]:
    """Split the concatenation of arrays into chunks of nearly the same size.

    >>> _chunks([3, 5], 2)
    [[_Slice(array=0, start=0, stop=3), _Slice(array=1, start=0, stop=1)], \
[_Slice(array=1, start=1, stop=5)]]
    """
    total = math.fsum(sizes)
    ends = [round(total * (k + 1) / count) for k in range(count)]
    chunks: list[list[_Slice]] = []
    begin = 0
    for end in ends:
        chunk, offset = [], 0
        for number, size in enumerate(sizes):
            start, stop = max(begin - offset, 0), min(end - offset, size)
            if start < stop:
                chunk.append(_Slice(number, start, stop))
            offset += size
        chunks.append(chunk)
        begin = end
    return chunks


def _views(arrays: Sequence[np.ndarray], slices: Sequence[_Slice]) -> list[memoryview]:
    return [bytes_of(arrays[part.array][part.start : part.stop]) for part in slices]
