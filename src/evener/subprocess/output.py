"""The output of a child process: its size, and its end, in bounded memory."""

from __future__ import annotations

import os
import threading

from rich.text import Text

KEPT_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024


class Output:
    """Reads a pipe to its end in a thread, so that the writer never blocks.

    Args:
        kept_bytes: Number of bytes at the end to keep.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._tail = b""
        self.num_bytes = 0
        self._source, self.sink = os.pipe()
        self._thread = threading.Thread(target=self._drain, name="evener-output", daemon=True)

    def start(self) -> None:
        """Start reading, and close this process's copy of `sink`; the writer has its own."""
        os.close(self.sink)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until the last writer has closed the pipe."""
        self._thread.join(seconds)

    @property
    def tail(self) -> str:
        """The end of the output, without colours; bytes that are not UTF-8 are replaced."""
        text = self._tail.decode("utf-8", errors="replace")
        return Text.from_ansi(text.replace("\r\n", "\n")).plain

    def _drain(self) -> None:
        while block := os.read(self._source, _READ_BYTES):
            self.num_bytes += len(block)
            self._tail = (self._tail + block)[-self._kept_bytes :]
        os.close(self._source)
