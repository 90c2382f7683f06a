"""Mesh of the workers of one view: sums and joins of arrays, with the same bits on every worker."""

from __future__ import annotations

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
from evener.workers.wire import Wire, other_step

# Lists of arrays as bytes: a description in JSON, then the elements. No code is executed.

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


# Memory for results, used again as soon as nobody has them any more.

_OLD = 1000
"""Arrays after which memory that nobody has asked for is given up."""
_REFERENCES = 3
"""References to memory that nobody else has: the list, a variable, the argument of the count."""


class Buffers:
    """Memory for arrays. New pages of the system cost more than a copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, list[np.ndarray]] = {}
        self._used: dict[int, int] = {}
        self._count = 0

    def take(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return an uninitialised array of numbers, aligned for TensorFlow."""
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            memory = self._memory(num_bytes)
        return aligned(memory, num_bytes).view(dtype).reshape(shape)

    def _memory(self, num_bytes: int) -> np.ndarray:
        self._count += 1
        self._used[num_bytes] = self._count
        kept = self._kept.setdefault(num_bytes, [])
        for memory in kept:
            if sys.getrefcount(memory) == _REFERENCES:
                return memory
        for size in [size for size, used in self._used.items() if used < self._count - _OLD]:
            del self._kept[size], self._used[size]
        kept.append(np.empty(num_bytes + ALIGNMENT, np.uint8))
        return kept[-1]


# Mesh of the workers of one view: sums and joins of arrays, with the same bits on every worker.
#
# ::
#
#     array of each worker      a b c      d e f      g h i
#
#     1. each adds one chunk    a+d+g      b+e+h      c+f+i       in the order of the workers
#     2. each sends its sum     all        all        all
#
# Every worker sends and receives each byte twice, as in a ring, but in two rounds for any number of
# workers.

MERGES: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "all": np.logical_and,
    "any": np.logical_or,
}
_SMALL_BYTES = 1 << 15
"""Arrays that are sent whole, which takes one round instead of two."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """Elements of one array."""

    array: int
    start: int
    stop: int


class Mesh:
    """Connections to the other members of a view.

    Every exchange raises `PeerLost` if the view is over, RUN-090 if another worker exchanges
    something else, and RUN-091 after ``patience_seconds`` without any progress. Its label is the
    same on every worker.
    """

    def __init__(
        self, index: int, connections: Mapping[int, socket.socket], *, patience_seconds: float
    ) -> None:
        self.members = tuple(sorted([index, *connections]))
        self._index = index
        self._wire = Wire(connections, patience_seconds=patience_seconds)
        self._peers = self._wire.peers
        self._buffers = Buffers()

    @property
    def asks_to_stop(self) -> bool:
        """Whether this worker asks all to stop; told in every exchange."""
        return self._wire.asks_to_stop

    @asks_to_stop.setter
    def asks_to_stop(self, value: bool) -> None:
        self._wire.asks_to_stop = value

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether another worker has asked all to stop."""
        return self._wire.is_asked_to_stop

    def reduce(self, label: str, arrays: Sequence[np.ndarray], merge: str) -> list[np.ndarray]:
        """Combine arrays of one type, whose shapes are the same everywhere, by a key of `MERGES`.

        Returns new arrays, or those that were given if there is no other member.
        """
        if not self._peers:
            self._wire.check()
            return list(arrays)
        flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
        is_small = sum(array.nbytes for array in flat) <= _SMALL_BYTES
        combine = self._reduce_small if is_small else self._reduce_large
        # Gradients that overflow are ordinary under loss scaling, and TensorFlow says nothing.
        with np.errstate(all="ignore"):
            found = combine(label, flat, MERGES[merge])
        return [made.reshape(array.shape) for made, array in zip(found, arrays, strict=True)]

    def gather(self, label: str, array: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of all members, in their order, of one type and number of axes."""
        own = np.ascontiguousarray(array)
        shape = np.asarray(own.shape, np.int64)
        shapes = {peer: np.empty_like(shape) for peer in self._peers}
        flat: dict[int, np.ndarray] = {}

        def room(peer: int, count: int) -> list[memoryview]:
            flat[peer] = np.empty((count - shape.nbytes) // own.itemsize, own.dtype)
            return [_bytes_of(shapes[peer]), _bytes_of(flat[peer])]

        sent = [_bytes_of(shape), _bytes_of(own.reshape(-1))]
        self._wire.exchange(label, dict.fromkeys(self._peers, sent), room)
        found = {peer: flat[peer].reshape(shapes[peer]) for peer in self._peers}
        return [own if member == self._index else found[member] for member in self.members]

    def deliver(self, label: str, parcels: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Send bytes to some members, and return what others have sent to this one, by sender."""
        views = {peer: _bytes_of(data) for peer, data in parcels.items()}
        return self._wire.deliver(label, views)

    def broadcast(self, label: str, arrays: list[np.ndarray], root: int) -> list[np.ndarray]:
        """Return the arrays of the member ``root``."""
        is_root = root == self._index
        parcels = dict.fromkeys(self._peers, pack([arrays])) if is_root else {}
        received = self.deliver(label, parcels)
        return arrays if is_root else unpack(received[root])[0]

    def find_readers(self) -> None:
        """Let members of one machine read each other's memory; all of the view call it at once."""
        self._wire.find_readers()

    def abort(self) -> None:
        """End the view: whoever waits for the others gets `PeerLost`. Safe from any thread."""
        self._wire.abort()

    def end_sending(self) -> None:
        """Send nothing any more: who waits for this worker from now on gets `PeerLost`."""
        self._wire.end_sending()

    def close(self) -> None:
        """Close all connections."""
        self._wire.close()

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
            for peer in self._peers
        }
        self._exchange_fixed(
            f"{label} 1",
            {peer: _views(flat, slices[peer]) for peer in self._peers},
            {peer: [_bytes_of(array) for array in arrays] for peer, arrays in received.items()},
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
            dict.fromkeys(self._peers, _views(results, mine)),
            {peer: _views(results, slices[peer]) for peer in self._peers},
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

        self._wire.exchange(label, sends, room)


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
    return [_bytes_of(arrays[part.array][part.start : part.stop]) for part in slices]


def _bytes_of(array: np.ndarray) -> memoryview:
    flat: Any = array.view(np.uint8)
    return memoryview(flat) if array.size else memoryview(b"")
