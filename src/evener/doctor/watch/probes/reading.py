"""Tensors that the program brings to the host while it trains, by its own lines."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import evener
from evener._tf_private.tensors import HOST_READS
from evener.base.user_code import is_own
from evener.doctor.watch.probes.events import Events
from evener.doctor.watch.probes.progress import Progress

_KERAS = str(Path(keras.__file__ or "").parent) + os.sep
# What Keras reads for its own logs and callbacks is no line of the program.
_TRAINING = tuple(
    f"{_KERAS}src{os.sep}{part}"
    for part in ("trainers", "callbacks", f"backend{os.sep}tensorflow{os.sep}trainer.py")
)
_EVENER = str(Path(evener.__file__ or "").parent) + os.sep
_PASSED = tuple(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (tf, np))


class Reading:
    """Counts and times reads, from the first step's end on.

    Args:
        events: Events to record it in.
        progress: Record of steps, to know whether training has begun.
    """

    def __init__(self, events: Events, progress: Progress) -> None:
        self._events = events
        self._progress = progress
        self._reads: dict[tuple[str, int], list[float]] = {}

    def watch(self) -> None:
        """Begin to notice reads."""
        HOST_READS.apply(self._counted)

    def write(self) -> None:
        """Write all reads so far."""
        if self._reads:
            reads = [[*where, int(n), seconds] for where, (n, seconds) in self._reads.items()]
            self._events.write("reads", reads=reads)

    def _counted(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def read(tensor: Any) -> Any:
            if not self._progress.is_training:
                return original(tensor)
            began = self._progress.clock()
            value = original(tensor)
            seconds = self._progress.clock() - began
            where = reader(sys._getframe(1))
            if where is not None:
                found = self._reads.setdefault(where, [0, 0.0])
                found[0] += 1
                found[1] += seconds
            return value

        return read


def reader(frame: FrameType | None) -> tuple[str, int] | None:
    """Return the own line that asked for a value, or None if a library asked for itself."""
    while frame is not None:
        kind = _kind(frame.f_code.co_filename)
        if kind == "own":
            return frame.f_code.co_filename, frame.f_lineno
        if kind == "itself":
            return None
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=4096)
def _kind(filename: str) -> str:
    if filename.startswith(_PASSED):
        return "passed"
    if filename.startswith((_EVENER, *_TRAINING)):
        return "itself"
    return "own" if is_own(filename) else "passed"
