"""Mesh of the workers of one view: sums and joins of arrays, with the same bits on every worker.

::

    array of each worker      a b c      d e f      g h i

    1. each adds one chunk    a+d+g      b+e+h      c+f+i       in the order of the workers
    2. each sends its sum     all        all        all

Every worker sends and receives each byte twice, as in a ring, but in two rounds for any number of
workers.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evener.workers.arrays import pack, unpack
from evener.workers.buffers import Buffers
from evener.workers.wire import Wire, other_step

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
