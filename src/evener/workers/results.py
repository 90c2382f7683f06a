"""Results of all calls of a job so far, from which a replacement learns what it has missed."""

from __future__ import annotations

import sys
import threading
from typing import NamedTuple

import numpy as np

from evener.errors import RunError
from evener.workers.arrays import pack, unpack

LIMIT_BYTES = 256 << 20


_LENGTH_BYTES = 8


class CallResults(NamedTuple):
    """Results of a call."""

    results: list[np.ndarray]  # Tensors among its results, in order.
    variables: list[np.ndarray]  # Values of the small variables that steps write, after the call.

    def pack(self) -> bytes:
        """Return the results as bytes, preceded by their size."""
        data = pack(self).tobytes()
        return len(data).to_bytes(_LENGTH_BYTES, "big") + data

    @classmethod
    def unpack_all(cls, packed: bytes) -> list[CallResults]:
        """Return the results that `pack` wrote, one call after the other."""
        found, begin = [], 0
        while begin < len(packed):
            size = int.from_bytes(packed[begin : begin + _LENGTH_BYTES], "big")
            begin += _LENGTH_BYTES
            found.append(cls(*unpack(np.frombuffer(packed, np.uint8, size, begin))))
            begin += size
        return found


class Results:
    """Results of the calls so far, in order; beyond ``limit_bytes``, nothing is kept any more."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._num_bytes = 0
        self._kept: list[bytes] | None = []
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of calls."""
        return self._count

    def add(self, results: list[np.ndarray], variables: list[np.ndarray]) -> None:
        """Add the results of the next call; see `CallResults`."""
        with self._lock:
            self._count += 1
            if self._kept is None:
                return
            # Many small arrays would take many times the bytes of their elements.
            self._kept.append(CallResults(results, variables).pack())
            self._num_bytes += sys.getsizeof(self._kept[-1])
            if self._num_bytes > self._limit:
                self._kept = None

    def since(self, number: int) -> bytes:
        """Return the packed results from a call (from 0) on; RUN-093 if they are not kept."""
        with self._lock:
            if self._kept is None:
                raise RunError(
                    "RUN-093",
                    "A worker cannot be replaced any more.",
                    why=f"A replacement needs the results of all calls so far, and they take more "
                    f"than {self._limit >> 20} MiB.",
                    fix="The job goes on without it. Start it again from a checkpoint to have all "
                    "workers.",
                )
            return b"".join(self._kept[number:])
