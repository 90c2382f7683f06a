"""Output of the workers of `evener launch`: to their log files, and the chief's to the console."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Literal

from evener.base.text import printable

Stream = Literal["stdout", "stderr"]
Source = tuple[int, int]
"""Number and incarnation of a worker."""
_Lines = collections.deque[bytes]

_NUM_REMEMBERED = 200
NUM_SHOWN = 20
"""Number of lines that are shown of a worker that failed."""
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Lines of a new chief around the handover."""

    # Lines that it has printed already, and that have not been shown.
    missing: tuple[bytes, ...] = ()
    # Lines that have been shown, and that it is still going to print.
    expected: tuple[bytes, ...] = ()


def continuation(shown: Sequence[bytes], own: Sequence[bytes]) -> Continuation:
    """Return where the output of a new chief continues that of the chief before.

    All workers run the same program, so they print the same lines, but a worker may be a few lines
    ahead of another. A line is printed twice rather than lost where it is not certain.
    ``shown`` has the last lines that were shown, ``own`` those of the new chief.

    >>> continuation([b"a", b"b"], [b"a", b"b", b"c"]).missing
    (b'c',)
    >>> continuation([b"a", b"b"], [b"a"]).expected
    (b'b',)
    """
    if not shown:
        return Continuation(missing=tuple(own))
    if not own:
        return Continuation(expected=tuple(shown))
    ahead = _end_of(shown, own)
    if ahead is not None:
        return Continuation(missing=tuple(own[ahead:]))
    behind = _end_of(own, shown)
    if behind is not None:
        return Continuation(expected=tuple(shown[behind:]))
    return Continuation()


def _end_of(lines: Sequence[bytes], other: Sequence[bytes]) -> int | None:
    """Return the position behind the best match of the end of lines in other ones."""
    matches: list[tuple[int, int]] = []
    for end in range(1, len(other) + 1):
        pairs = zip(reversed(lines), reversed(other[:end]), strict=False)
        equal = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        matches.append((len([*equal]), end))
    # The first of equally good ones: a line is rather printed twice than lost.
    longest, end = max(matches, key=lambda match: (match[0], -match[1]))
    return end if longest else None


class Console:
    def __init__(self, stdout: BinaryIO, stderr: BinaryIO) -> None:
        self._streams: dict[Stream, BinaryIO] = {"stdout": stdout, "stderr": stderr}
        self._closed: set[Stream] = set()
        self._lock = threading.Lock()
        self.chief: Source | None = None  # The worker whose lines appear.
        new_lines = functools.partial(_Lines, maxlen=_NUM_REMEMBERED)
        self._shown: dict[Stream, _Lines] = collections.defaultdict(new_lines)
        self._own: dict[tuple[Source, Stream], _Lines] = collections.defaultdict(new_lines)
        self._expected: dict[Stream, _Lines] = collections.defaultdict(new_lines)

    def set_chief(self, source: Source) -> None:
        """Show the lines of a worker from now on, where those of the last chief ended."""
        with self._lock:
            if self.chief == source:
                return
            self.chief = source
            for stream in ("stdout", "stderr"):
                own = tuple(self._own[source, stream])
                handover = continuation(tuple(self._shown[stream]), own)
                self._expected[stream] = collections.deque(handover.expected, _NUM_REMEMBERED)
                for line in handover.missing:
                    self._show(stream, line)

    def line(self, source: Source, stream: Stream, line: bytes) -> None:
        """Take a line of a worker, with its end; it appears if the worker is the chief."""
        with self._lock:
            self._own[source, stream].append(line)
            if source != self.chief:
                return
            expected = self._expected[stream]
            if line in expected:
                while expected.popleft() != line:
                    pass
                return
            expected.clear()
            self._show(stream, line)

    def message(self, text: str) -> None:
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
            # Otherwise Python would exit with 120 because of the pending output.
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                try:
                    os.dup2(nowhere, self._streams[stream].fileno())
                finally:
                    os.close(nowhere)


class WorkerOutput:
    """Writes the lines of a worker to its log file, which it appends to, and to the console."""

    def __init__(self, source: Source, logs: Path, console: Console) -> None:
        self._source, self._console = source, console
        self._log = (logs / f"worker-{source[0]}.log").open("ab", buffering=0)
        self._lock = threading.Lock()

    def begin(self, origin: str) -> None:
        index, incarnation = self._source
        self._write_log(f"--- worker {index}, incarnation {incarnation}, {origin} ---\n".encode())

    def line(self, stream: Stream, line: bytes) -> None:
        self._write_log(line)
        self._console.line(self._source, stream, line)

    def close(self) -> None:
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


def read_lines(pipe: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a pipe as soon as they are complete, and the rest at its end."""
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
