"""Mesh of the workers of one view: bytes, and sums and joins of arrays with the same bits for all.

Each worker sends to and receives from all others at once::

    header │ bytes                            to a worker of another machine, or few bytes
    header │ addresses ... receipt            to one of this machine, which reads them itself

A worker that offers addresses of its memory opens its window, and closes it before it lets go of
the arrays. Whoever has read looks at the window afterwards: if it is still open, all that was read
is valid. A sum takes two rounds, and every byte is sent and received twice, as in a ring::

    array of each worker      a b c      d e f      g h i

    1. each adds one chunk    a+d+g      b+e+h      c+f+i       in the order of the workers
    2. each sends its sum     all        all        all
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import json
import math
import os
import secrets
import selectors
import socket
import struct
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from evener._tf_private.tensors import ALIGNMENT, aligned
from evener.errors import RunError
from evener.workers.faults import not_reached_by

Segment = tuple[int, int]
"""Address and number of bytes."""
Room = Callable[[int, int], Sequence[memoryview]]
"""Function of a member and a number of bytes, which returns the buffers for them."""
Slice = tuple[int, slice]
"""Number of an array, and a part of it."""

# Systems other than Linux have no such function.
_READ_MEMORY = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
_MOST_SEGMENTS = 512
_MOST_BYTES = 1 << 26
_HEADER = struct.Struct("<QIQ?I")
"""Number of the exchange, checksum of its label, bytes, `Mesh.asks_to_stop`, addresses."""
_ADDRESS = struct.Struct("<QQ")
_RECEIPT = memoryview(b"r")
_LEAST_READ = 1 << 15
"""Bytes from which on they are read instead of sent."""
_SLICE = 1 << 20
"""Bytes that are offered to a socket at once."""
_SYSTEM_BUFFER = 4 << 20
"""Bytes that the system holds for each direction of a connection."""
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


class _IoVector(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


class WindowAddress(NamedTuple):
    process: int
    address: int
    token: int  # Random number that stands there.


class Window:
    """Number of the exchange whose arrays other workers may read; 0 for none."""

    def __init__(self) -> None:
        self._words = np.array([secrets.randbits(64), 0], np.uint64)

    @property
    def address(self) -> WindowAddress:
        token, address = int(self._words[0]), self._words.ctypes.data
        return WindowAddress(process=os.getpid(), address=address, token=token)

    def open(self, exchange: int) -> None:
        """Let other workers read the arrays of an exchange, numbered from 1."""
        self._words[1] = exchange

    def close(self) -> None:
        self._words[1] = 0


class PeerMemory:
    """Memory of the process that has the window."""

    def __init__(self, window: WindowAddress) -> None:
        self._window = window
        self._words = np.zeros(2, np.uint64)

    def is_readable(self) -> bool:
        """Return whether this process may read it: it is on this machine, and of the same user."""
        try:
            return self._look()[0] == self._window.token
        except OSError:
            return False

    def read(self, exchange: int, segments: Sequence[Segment], into: Sequence[memoryview]) -> None:
        """Read arrays of the other worker's exchange into buffers of as many bytes together."""
        try:
            _read(self._window.process, segments, into)
            words = self._look()
        except OSError as error:
            raise ConnectionError(f"its memory cannot be read: {error.strerror}") from error
        if words != (self._window.token, exchange):
            raise ConnectionError("it has left the exchange")

    def _look(self) -> tuple[int, int]:
        words: Any = self._words
        where = [(self._window.address, words.nbytes)]
        _read(self._window.process, where, [memoryview(words).cast("B")])
        return int(self._words[0]), int(self._words[1])


def segments_of(views: Sequence[memoryview]) -> list[Segment]:
    return [
        (np.frombuffer(view, np.uint8).ctypes.data, view.nbytes) for view in views if view.nbytes
    ]


def _read(process: int, segments: Sequence[Segment], into: Sequence[memoryview]) -> None:
    if _READ_MEMORY is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    pieces = [*_pieces(segments, segments_of(into))]
    for begin in range(0, len(pieces), _MOST_SEGMENTS):
        some = pieces[begin : begin + _MOST_SEGMENTS]
        here = (_IoVector * len(some))(*(_IoVector(own, count) for _, own, count in some))
        there = (_IoVector * len(some))(*(_IoVector(other, count) for other, _, count in some))
        count = ctypes.c_ulong(len(some))
        done = _READ_MEMORY(process, here, count, there, count, ctypes.c_ulong(0))
        if done != sum(piece[2] for piece in some):
            number = ctypes.get_errno() if done < 0 else errno.EFAULT
            raise OSError(number, os.strerror(number))


def _pieces(
    segments: Sequence[Segment], rooms: Sequence[Segment]
) -> Iterator[tuple[int, int, int]]:
    """Yield addresses there and here, and numbers of bytes.

    >>> [*_pieces([(100, 4), (200, 4)], [(0, 6), (10, 2)])]
    [(100, 0, 4), (200, 4, 2), (202, 10, 2)]
    """
    waiting = list(reversed(rooms))
    for address, count in segments:
        while count:
            room, free = waiting.pop()
            size = min(count, free, _MOST_BYTES)
            yield address, room, size
            address, count = address + size, count - size
            if free > size:
                waiting.append((room + size, free - size))


class PeerLost(ConnectionError):
    """The connection to another worker has ended, or the view is over."""


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
        self.peers = tuple(sorted(connections))
        self._index, self._buffers = index, Buffers()
        self.asks_to_stop = False  # Whether this worker asks all to stop; sent in every exchange.
        self.is_asked_to_stop = False  # Whether another one has asked.
        self._connections = dict(connections)
        self._patience = patience_seconds
        self._count = 0
        self._window = Window()
        self._memories: dict[int, PeerMemory] = {}
        self._readers: set[int] = set()
        self._is_over = threading.Event()
        self._woken, self._waker = socket.socketpair()
        for connection in connections.values():
            # For large arrays and short waits.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                connection.setsockopt(socket.SOL_SOCKET, option, _SYSTEM_BUFFER)
            connection.setblocking(False)

    def find_readers(self) -> None:
        """Find out which members share a machine, and so read the memory of each other."""
        packed = np.array(self._window.address, np.uint64).view(np.uint8)
        for peer, data in self.deliver("memory", dict.fromkeys(self.peers, packed)).items():
            memory = PeerMemory(WindowAddress(*data.view(np.uint64).tolist()))
            if memory.is_readable():
                self._memories[peer] = memory
        are_readable = dict.fromkeys(self._memories, np.ones(1, np.uint8))
        self._readers = set(self.deliver("readers", are_readable))

    def exchange(self, label: str, sends: Mapping[int, Sequence[memoryview]], room: Room) -> None:
        """Send to and receive from every other member at the same time."""
        self.check()
        self._count += 1
        pairs = {
            connection: _Pair(self, peer, label, sends[peer], room)
            for peer, connection in self._connections.items()
        }
        self._window.open(self._count)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._woken, selectors.EVENT_READ)
                for connection, pair in pairs.items():
                    selector.register(connection, pair.wanted, pair)
                self._pump(label, selector, pairs)
        finally:
            # Before the caller lets go of what the others might still read.
            self._window.close()

    def check(self) -> None:
        if self._is_over.is_set():
            raise PeerLost("the view is over")

    def deliver(self, label: str, parcels: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Send bytes to some members, and return what others have sent to this one, by sender."""
        received: dict[int, Any] = {}

        def room(peer: int, count: int) -> list[memoryview]:
            if not count:
                return []
            received[peer] = np.empty(count, np.uint8)
            return [memoryview(received[peer])]

        sends = {p: [bytes_of(parcels[p])] if p in parcels else [] for p in self.peers}
        self.exchange(label, sends, room)
        return received

    def abort(self) -> None:
        """End the view: whoever waits for the others gets `PeerLost`. Safe from any thread."""
        self._is_over.set()
        try:
            self._waker.send(b"x")
        except OSError:
            return  # It is closed: nobody waits.

    def end_sending(self) -> None:
        """Send nothing any more; what was sent arrives, and then `PeerLost`."""
        for connection in self._connections.values():
            # One that is broken or closed has ended already.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._is_over.set()
        for connection in (*self._connections.values(), self._woken, self._waker):
            # Whoever waits for it sees its end.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def header(
        self, label: str, peer: int, views: Sequence[memoryview]
    ) -> tuple[list[memoryview], bool]:
        """Return the bytes to send for buffers, and whether the other worker reads them itself."""
        count = sum(view.nbytes for view in views)
        is_read = peer in self._readers and count >= _LEAST_READ
        segments = segments_of(views) if is_read else []
        checksum = zlib.crc32(label.encode())
        head = _HEADER.pack(self._count, checksum, count, self.asks_to_stop, len(segments))
        if not is_read:
            return [memoryview(head), *(view for view in views if view.nbytes)], False
        return [memoryview(head + b"".join(_ADDRESS.pack(*part) for part in segments))], True

    def incoming(
        self, label: str, peer: int, room: Room, send: Callable[[memoryview], None]
    ) -> Generator[memoryview]:
        """Yield the buffers to fill with the data of another worker, one after the other."""
        header = bytearray(_HEADER.size)
        yield memoryview(header)
        number, checksum, count, asks, num_segments = _HEADER.unpack(header)
        self.is_asked_to_stop |= asks
        if (number, checksum) != (self._count, zlib.crc32(label.encode())):
            raise other_step(label, peer)
        views = room(peer, count)
        if not num_segments:
            yield from (view for view in views if view.nbytes)
            return
        table = bytearray(num_segments * _ADDRESS.size)
        yield memoryview(table)
        self._memories[peer].read(number, [*_ADDRESS.iter_unpack(table)], views)
        send(_RECEIPT)

    def _pump(
        self,
        label: str,
        selector: selectors.BaseSelector,
        pairs: Mapping[socket.socket, _Pair],
    ) -> None:
        waiting = set(pairs)
        latest = time.monotonic()
        while waiting:
            self.check()
            ready = selector.select(timeout=1.0)
            if not ready and time.monotonic() - latest > self._patience:
                names = ", ".join(map(str, sorted(pairs[each].peer for each in waiting)))
                raise not_reached_by(names, repr(label), self._patience)
            for key, events in ready:
                connection = key.fileobj
                if not isinstance(connection, socket.socket) or connection is self._woken:
                    raise PeerLost("the view is over")
                pair: _Pair = key.data
                latest = time.monotonic()
                try:
                    pair.go_on(connection, events)
                except OSError as error:
                    raise PeerLost(f"worker {pair.peer} is gone: {error}") from error
                if not pair.wanted:
                    selector.unregister(connection)
                    waiting.discard(connection)
                elif pair.wanted != key.events:
                    selector.modify(connection, pair.wanted, pair)

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
            peer: [take([part.stop - part.start], flat[array].dtype) for array, part in mine]
            for peer in self.peers
        }
        self._exchange_fixed(
            f"{label} 1",
            {peer: _views(flat, slices[peer]) for peer in self.peers},
            {peer: [bytes_of(array) for array in arrays] for peer, arrays in received.items()},
        )
        for number, (array, part) in enumerate(mine):
            own, total = flat[array][part], results[array][part]
            terms = [own if k == self._index else received[k][number] for k in self.members]
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


class _Pair:
    """State of an exchange with another member: buffers to send, and a room for what comes."""

    def __init__(
        self, mesh: Mesh, peer: int, label: str, views: Sequence[memoryview], room: Room
    ) -> None:
        self.peer = peer
        sends, is_read = mesh.header(label, peer, views)
        self._sends = deque(sends)
        incoming = mesh.incoming(label, peer, room, self._sends.append)
        receipt = [memoryview(bytearray(_RECEIPT.nbytes))] if is_read else []
        self._incoming = itertools.chain(incoming, receipt)
        self._receives: memoryview | None = next(self._incoming)

    @property
    def wanted(self) -> int:
        return (selectors.EVENT_WRITE if self._sends else 0) | (
            0 if self._receives is None else selectors.EVENT_READ
        )

    def go_on(self, connection: socket.socket, events: int) -> None:
        # First its own header: the other worker must learn of an error that comes next.
        self._send(connection)
        if events & selectors.EVENT_READ:
            self._receive(connection)
            self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        while self._sends:
            try:
                sent = connection.send(self._sends[0][:_SLICE])
            except BlockingIOError:
                return
            rest = self._sends[0][sent:]
            if rest.nbytes:
                self._sends[0] = rest
                return
            self._sends.popleft()

    def _receive(self, connection: socket.socket) -> None:
        while self._receives is not None:
            try:
                count = connection.recv_into(self._receives)
            except BlockingIOError:
                return
            if count == 0:
                raise ConnectionError("it has closed the connection")
            rest = self._receives[count:]
            self._receives = rest if rest.nbytes else next(self._incoming, None)


def bytes_of(array: np.ndarray) -> memoryview:
    flat: Any = array.view(np.uint8)
    return memoryview(flat) if array.size else memoryview(b"")


def other_step(label: str, peer: int | None = None) -> RunError:
    who = "another worker" if peer is None else f"worker {peer}"
    return RunError(
        "RUN-090",
        f"This worker and {who} compute different steps.",
        why=f"Here {label!r} is exchanged, and there something else: the workers run other code, "
        "or see batches of other sizes.",
        fix="Start all workers with the same script, arguments, data and versions.",
    )


def _chunks(sizes: Sequence[int], count: int) -> list[list[Slice]]:
    """Split the concatenation of arrays into chunks of nearly the same size.

    >>> _chunks([3, 5], 2)
    [[(0, slice(0, 3, None)), (1, slice(0, 1, None))], [(1, slice(1, 5, None))]]
    """
    total = math.fsum(sizes)
    ends = [round(total * (k + 1) / count) for k in range(count)]
    chunks: list[list[Slice]] = []
    begin = 0
    for end in ends:
        chunk, offset = [], 0
        for number, size in enumerate(sizes):
            start, stop = max(begin - offset, 0), min(end - offset, size)
            if start < stop:
                chunk.append((number, slice(start, stop)))
            offset += size
        chunks.append(chunk)
        begin = end
    return chunks


def _views(arrays: Sequence[np.ndarray], slices: Sequence[Slice]) -> list[memoryview]:
    return [bytes_of(arrays[number][part]) for number, part in slices]
