"""Standard output and error of a job: the lines of its chief, and messages of the supervisor."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from typing import BinaryIO, Literal

from evener.launch.handover import continuation
from evener.units import printable

Stream = Literal["stdout", "stderr"]
Source = tuple[int, int]
"""Number and incarnation of a worker."""

_NUM_REMEMBERED = 200
NUM_SHOWN = 20
"""Number of lines that are shown of a worker that failed."""

_Lines = collections.deque[bytes]


def _lines() -> _Lines:
    return collections.deque(maxlen=_NUM_REMEMBERED)


class Console:
    """Standard output and error of a job, for several threads.

    They show the streams of the chief; standard error shows messages too.
    """

    def __init__(self, stdout: BinaryIO, stderr: BinaryIO) -> None:
        self._streams: dict[Stream, BinaryIO] = {"stdout": stdout, "stderr": stderr}
        self._closed: set[Stream] = set()
        self._lock = threading.Lock()
        self._chief: Source | None = None
        self._shown: dict[Stream, _Lines] = {"stdout": _lines(), "stderr": _lines()}
        self._own: dict[tuple[Source, Stream], _Lines] = collections.defaultdict(_lines)
        self._expected: dict[Stream, _Lines] = {"stdout": _lines(), "stderr": _lines()}

    @property
    def chief(self) -> Source | None:
        """The worker whose lines appear; None before the first one."""
        return self._chief

    def set_chief(self, source: Source) -> None:
        """Show the lines of a worker from now on, where those of the last chief ended."""
        with self._lock:
            if self._chief == source:
                return
            self._chief = source
            for stream in ("stdout", "stderr"):
                own = tuple(self._own[source, stream])
                found = continuation(tuple(self._shown[stream]), own)
                self._expected[stream] = collections.deque(found.expected, _NUM_REMEMBERED)
                for line in found.missing:
                    self._show(stream, line)

    def line(self, source: Source, stream: Stream, line: bytes) -> None:
        """Take a line of a worker, with its end; it appears if the worker is the chief."""
        with self._lock:
            self._own[source, stream].append(line)
            if source != self._chief:
                return
            expected = self._expected[stream]
            if line in expected:
                while expected.popleft() != line:
                    pass
                return
            expected.clear()
            self._show(stream, line)

    def message(self, text: str) -> None:
        """Print a message of the supervisor on standard error."""
        with self._lock:
            lines = [f"evener: {printable(line)}\n".encode() for line in text.splitlines()]
            self._write("stderr", b"".join(lines))

    def last_lines(self, source: Source) -> list[bytes]:
        """Return the last lines that a worker wrote to standard error."""
        with self._lock:
            return list(self._own[source, "stderr"])[-NUM_SHOWN:]

    def show_failure(self, source: Source) -> None:
        """Print the last lines of a worker's standard error, each with its number."""
        texts = (line.decode(errors="replace").rstrip() for line in self.last_lines(source))
        shown = [f"[worker {source[0]}] {printable(t, keeps_colours=True)}\n" for t in texts]
        with self._lock:
            self._write("stderr", "".join(shown).encode())

    def _show(self, stream: Stream, line: bytes) -> None:
        self._shown[stream].append(line)
        self._write(stream, line)

    def _write(self, stream: Stream, content: bytes) -> None:
        if stream in self._closed or not content:
            return
        try:
            self._streams[stream].write(content)
            self._streams[stream].flush()
        except (OSError, ValueError):
            # Whoever read it has gone, as behind `| head`: training goes on, the log has all.
            self._closed.add(stream)
            _discard(self._streams[stream])


def _discard(stream: BinaryIO) -> None:
    """Discard the pending output of a stream; otherwise Python exits with 120."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
