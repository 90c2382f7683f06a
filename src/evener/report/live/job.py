"""Live view of several workers: each writes its state into a file, and the launcher shows all."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evener.report.live.screen import Screen
from evener.report.live.state import LiveDevice, LiveState

FOLDER = "EVENER_LIVE"
"""Environment variable with the folder of the files."""

_MOST_LINES = 100
_STALE_SECONDS = 5.0


class FileScreen:
    """Screen of a worker: its state, in a file that the launcher reads.

    Args:
        folder: Folder of the files.
        worker: Number of the worker.
        replaces_bar: Whether the launcher shows the view on a terminal.
    """

    def __init__(self, folder: Path, worker: int, *, replaces_bar: bool) -> None:
        self.replaces_bar = replaces_bar
        self._path = folder / f"worker-{worker}.json"
        self._lines: list[str] = []
        self._num_lines = 0
        self._lock = threading.Lock()
        self._state = LiveState()

    def open(self) -> None:
        """Begin to show."""

    def show(self, state: LiveState) -> None:
        """Write the state."""
        with self._lock:
            self._state = state
            self._write()

    def say(self, text: str) -> None:
        """Add a line."""
        with self._lock:
            self._num_lines += 1
            self._lines = [*self._lines, text][-_MOST_LINES:]
            self._write()

    def close(self) -> None:
        """End."""

    def _write(self) -> None:
        content = {
            "process": os.getpid(),
            "state": self._state.to_dict(),
            "num_lines": self._num_lines,
            "lines": self._lines,
        }
        part = self._path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(content), encoding="utf-8")
        part.replace(self._path)


class JobState:
    """The states of all workers of a job as one, and their new lines.

    Args:
        folder: Folder of the files.
        screen: Screen that takes the lines of the first worker.
        clock: Function that returns the time of files, in seconds.
    """

    def __init__(
        self, folder: Path, screen: Screen, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._screen = screen
        self._clock = clock
        self._seen: dict[int, int] = {}

    def state(self) -> LiveState | None:
        """Return the state of the job; None before the first worker has one."""
        found = dict(self._fresh())
        if not found:
            return None
        chief = found[min(found)]
        self._say(chief)
        devices: list[LiveDevice] = []
        for worker in sorted(found):
            devices += LiveState.from_dict(found[worker]["state"]).devices
        return dataclasses.replace(LiveState.from_dict(chief["state"]), devices=tuple(devices))

    def _fresh(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the file of each worker that still writes it."""
        for path in self._folder.glob("worker-*.json"):
            age = self._clock() - path.stat().st_mtime
            if age < _STALE_SECONDS:
                number = int(path.stem.removeprefix("worker-"))
                yield number, json.loads(path.read_text(encoding="utf-8"))

    def _say(self, found: Mapping[str, Any]) -> None:
        # A replacement counts from 0 again.
        seen = self._seen.get(found["process"], 0)
        new = found["num_lines"] - seen
        self._seen[found["process"]] = found["num_lines"]
        for line in found["lines"][-new:] if new > 0 else ():
            self._screen.say(line)
