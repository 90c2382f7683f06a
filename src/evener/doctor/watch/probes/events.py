"""The events of the watched process: one JSON value per line, in a file that outlives it."""

from __future__ import annotations

import json
import os
import threading
from typing import Any


class Events:
    """Writes events, each whole and at once, so that a kill loses nothing already seen.

    The file is opened anew for each: programs may close all files that they did not open, and
    get the same numbers for their own. Forked children write nothing.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._written = set[str]()
        self._lock = threading.Lock()

    @property
    def is_here(self) -> bool:
        """Return whether this is the watched process itself, not a fork of it."""
        return os.getpid() == self._pid

    def write(self, kind: str, **values: Any) -> None:
        """Write an event."""
        if not self.is_here:
            return
        line = json.dumps({"kind": kind, **values}, default=str) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line.encode("utf-8", errors="replace"))
        finally:
            os.close(file)

    def write_once(self, kind: str, **values: Any) -> None:
        """Write an event, if none was written that is equal."""
        key = json.dumps({"kind": kind, **values}, default=str)
        with self._lock:
            if key in self._written:
                return
            self._written.add(key)
        self.write(kind, **values)

    def missed(self, what: str, error: BaseException) -> None:
        """Say what cannot be watched, and why."""
        self.write_once("missed", what=f"{what}: {type(error).__name__}: {error}"[:500])
