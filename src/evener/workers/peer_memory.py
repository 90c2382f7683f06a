"""Memory of a worker on the same machine, which another one reads without a copy in between.

A worker that offers arrays opens its window, and closes it before it lets go of them. Whoever has
read looks at the window afterwards: if it is still open, all that was read is valid.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Segment = tuple[int, int]
"""Address and number of bytes."""

_MOST_SEGMENTS = 512
_MOST_BYTES = 1 << 26


class _Span(ctypes.Structure):
    """The ``struct iovec`` of the system."""

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
        """Address of the window."""
        token, address = int(self._words[0]), self._words.ctypes.data
        return WindowAddress(process=os.getpid(), address=address, token=token)

    def open(self, exchange: int) -> None:
        """Let other workers read the arrays of an exchange, numbered from 1."""
        self._words[1] = exchange

    def close(self) -> None:
        """Let no worker read them any more."""
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
        """Read arrays of the other worker's exchange into buffers of as many bytes together.

        ConnectionError if the other worker is gone, or has left the exchange.
        """
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
    """Return the addresses and sizes of buffers that are not empty."""
    return [
        (np.frombuffer(view, np.uint8).ctypes.data, view.nbytes) for view in views if view.nbytes
    ]


def _read(process: int, segments: Sequence[Segment], into: Sequence[memoryview]) -> None:
    call = _system_call()
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    pieces = [*_pieces(segments, segments_of(into))]
    for begin in range(0, len(pieces), _MOST_SEGMENTS):
        some = pieces[begin : begin + _MOST_SEGMENTS]
        here = (_Span * len(some))(*(_Span(own, count) for _, own, count in some))
        there = (_Span * len(some))(*(_Span(other, count) for other, _, count in some))
        count = ctypes.c_ulong(len(some))
        done = call(process, here, count, there, count, ctypes.c_ulong(0))
        if done != sum(piece[2] for piece in some):
            number = ctypes.get_errno() if done < 0 else errno.EFAULT
            raise OSError(number, os.strerror(number))


@functools.cache
def _system_call() -> Any:
    return getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)


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
