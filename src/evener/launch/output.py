"""What a program apart prints: counted, and its end kept, in bounded memory."""

from __future__ import annotations

import os
import threading

KEPT_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024


class Output:
    """Reads a pipe to its end, in a thread of its own, so that the program never waits.

    Args:
        kept_bytes: How much of the end is kept.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._tail = b""
        self.num_bytes = 0
        self._source, self.sink = os.pipe()
        self._thread = threading.Thread(target=self._drain, name="evener-output", daemon=True)

    def start(self) -> None:
        """Begin to read. What writes has got `sink` by now; here it is closed."""
        os.close(self.sink)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until the last writer has closed the pipe."""
        self._thread.join(seconds)

    @property
    def tail(self) -> str:
        """Return the end of what was printed; bytes that are no text are replaced."""
        return self._tail.decode("utf-8", errors="replace")

    def _drain(self) -> None:
        while block := os.read(self._source, _READ_BYTES):
            self.num_bytes += len(block)
            self._tail = (self._tail + block)[-self._kept_bytes :]
        os.close(self._source)
