"""Bytes between the members of a view: each sends to and receives from all others at once.

::

    header │ bytes                            to a worker of another machine, or few bytes
    header │ addresses ... receipt            to one of this machine, which reads them itself

A worker that offers addresses of its memory opens its window, and closes it before it lets go of
the arrays. Whoever has read looks at the window afterwards: if it is still open, all that was read
is valid.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import secrets
import selectors
import socket
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evener.errors import RunError
from evener.workers.faults import not_reached_by

Segment = tuple[int, int]
"""Address and number of bytes."""
Room = Callable[[int, int], Sequence[memoryview]]
"""Function of a member and a number of bytes, which returns the buffers for them."""

_MOST_SEGMENTS = 512
_MOST_BYTES = 1 << 26
_HEADER = struct.Struct("<QIQ?I")
"""Number of the exchange, checksum of its label, bytes, `Wire.asks_to_stop`, addresses."""
_ADDRESS = struct.Struct("<QQ")
_WINDOW = struct.Struct("<QQQ")
_RECEIPT = memoryview(b"r")
_LEAST_READ = 1 << 15
"""Bytes from which on they are read instead of sent."""
_SLICE = 1 << 20
"""Bytes that are offered to a socket at once."""
_SYSTEM_BUFFER = 4 << 20
"""Bytes that the system holds for each direction of a connection."""


class _IoVector(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class WindowAddress:
    """Address of a window, for other workers."""

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
    call = getattr(_standard_library(), "process_vm_readv", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    pieces = [*_pieces(segments, segments_of(into))]
    for begin in range(0, len(pieces), _MOST_SEGMENTS):
        some = pieces[begin : begin + _MOST_SEGMENTS]
        here = (_IoVector * len(some))(*(_IoVector(own, count) for _, own, count in some))
        there = (_IoVector * len(some))(*(_IoVector(other, count) for other, _, count in some))
        count = ctypes.c_ulong(len(some))
        done = call(process, here, count, there, count, ctypes.c_ulong(0))
        if done != sum(piece[2] for piece in some):
            number = ctypes.get_errno() if done < 0 else errno.EFAULT
            raise OSError(number, os.strerror(number))


@functools.cache
def _standard_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


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


class Wire:
    """Connections to the other members of a view.

    Every exchange raises `PeerLost` if the view is over, RUN-090 if another worker exchanges
    something else, and RUN-091 after ``patience_seconds`` without any progress. Its label is the
    same on every worker.
    """

    def __init__(
        self, connections: Mapping[int, socket.socket], *, patience_seconds: float
    ) -> None:
        self.peers = tuple(sorted(connections))
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
        own = self._window.address
        packed = np.frombuffer(_WINDOW.pack(own.process, own.address, own.token), np.uint8)
        for peer, data in self.deliver("memory", dict.fromkeys(self.peers, packed)).items():
            memory = PeerMemory(WindowAddress(*_WINDOW.unpack(data.tobytes())))
            if memory.is_readable():
                self._memories[peer] = memory
        answers = self.deliver("readers", dict.fromkeys(self._memories, np.ones(1, np.uint8)))
        self._readers = set(answers)

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
        """Yield the buffers to fill with what another worker sends, one after the other."""
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


class _Pair:
    """State of an exchange with another member: buffers to send, and a room for what comes."""

    def __init__(
        self, wire: Wire, peer: int, label: str, views: Sequence[memoryview], room: Room
    ) -> None:
        self.peer = peer
        sends, self._is_read = wire.header(label, peer, views)
        self._sends = deque(sends)
        self._incoming = self._all_incoming(wire.incoming(label, peer, room, self._sends.append))
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

    def _all_incoming(self, arrays: Generator[memoryview]) -> Generator[memoryview]:
        yield from arrays
        if self._is_read:
            yield memoryview(bytearray(_RECEIPT.nbytes))

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
