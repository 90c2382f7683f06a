"""Memory for results, used again as soon as nobody has them any more."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from evener.aligned import ALIGNMENT, aligned

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
