"""Results of all calls of a job so far, from which a replacement learns what it has missed."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from evener.errors import RunError

LIMIT_BYTES = 256 << 20


class CallResults(NamedTuple):
    """Results of a call.

    Attributes:
        results: Tensors among its results, in order.
        variables: Values of the small variables that steps write, behind the call.
    """

    results: list[np.ndarray]
    variables: list[np.ndarray]


class Results:
    """Results of the calls so far, in order, as long as they are few bytes.

    Args:
        limit_bytes: Bytes that are kept at most; beyond, nothing is kept any more.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._num_bytes = 0
        self._kept: list[CallResults] | None = []
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of calls."""
        return self._count

    def add(self, results: list[np.ndarray], variables: list[np.ndarray]) -> None:
        """Add what the next call has left; see `CallResults`."""
        with self._lock:
            self._count += 1
            self._num_bytes += sum(array.nbytes for array in (*results, *variables))
            if self._num_bytes > self._limit:
                self._kept = None
            if self._kept is not None:
                self._kept.append(CallResults(results, variables))

    def since(self, number: int) -> list[CallResults]:
        """Return the results from a call on.

        Args:
            number: Number of the call, from 0.

        Raises:
            RunError: RUN-093 if they are not kept.
        """
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
            return self._kept[number:]
