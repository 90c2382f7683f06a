"""The output of a worker's process: to its log file, and to the console."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from evener.launch.console import Console, Source, Stream

_CHUNK_BYTES = 65536
_DRAIN_SECONDS = 5.0


def log_file(logs: Path, index: int) -> Path:
    """Return the path of the log file of a worker."""
    return logs / f"worker-{index}.log"


class WorkerOutput:
    """Writes the lines of a worker to its log file, which it appends to, and to the console."""

    def __init__(self, source: Source, logs: Path, console: Console) -> None:
        self._source = source
        self._console = console
        self._log = log_file(logs, source[0]).open("ab", buffering=0)
        self._lock = threading.Lock()

    def begin(self, origin: str) -> None:
        """Write the first line of the process to the log file.

        The origin is the process and, if it is another machine, the host.
        """
        index, incarnation = self._source
        self._write_log(f"--- worker {index}, incarnation {incarnation}, {origin} ---\n".encode())

    def line(self, stream: Stream, line: bytes) -> None:
        """Take a line, with its end."""
        self._write_log(line)
        self._console.line(self._source, stream, line)

    def close(self) -> None:
        """Close the log file. What is written later is lost to it."""
        with self._lock:
            self._log.close()

    def _write_log(self, content: bytes) -> None:
        with self._lock:
            if self._log.closed:
                return
            try:
                self._log.write(content)
            except OSError as error:
                # A full disk must not block the worker's output.
                self._log.close()
                self._console.message(f"{self._log.name} is incomplete: {error.strerror}")


class Pipes:
    """Reads the pipes of a worker's process until they end, in threads, which call ``on_line``."""

    def __init__(
        self,
        index: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        on_line: Callable[[Stream, bytes], None],
    ) -> None:
        self._on_line = on_line
        pipes: tuple[tuple[Stream, IO[bytes]], ...] = (("stdout", stdout), ("stderr", stderr))
        self._threads = [
            threading.Thread(
                target=self._read, args=pipe, name=f"evener-{pipe[0]}-{index}", daemon=True
            )
            for pipe in pipes
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Wait until all is read.

        A process that left the group of the worker may hold a pipe open: what it writes after a few
        seconds is lost.
        """
        for thread in self._threads:
            thread.join(_DRAIN_SECONDS)

    def _read(self, stream: Stream, pipe: IO[bytes]) -> None:
        with pipe:
            for line in lines_of(pipe):
                self._on_line(stream, line)


def lines_of(pipe: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a pipe as soon as they are complete, and the rest at its end.

    A carriage return ends a line too, as in progress bars.
    """
    rest = b""
    while chunk := os.read(pipe.fileno(), _CHUNK_BYTES):
        *lines, rest = _split(rest + chunk)
        yield from lines
        if len(rest) >= _CHUNK_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


def _split(content: bytes) -> list[bytes]:
    r"""Return complete lines, and the rest after the last of them.

    >>> _split(b"a\nb\rc")
    [b'a\n', b'b\r', b'c']
    >>> _split(b"a\r")
    [b'a\r']
    """
    lines = content.splitlines(keepends=True)
    # A line feed may follow in the next chunk.
    if lines and not lines[-1].endswith(b"\n"):
        return lines
    return [*lines, b""]
