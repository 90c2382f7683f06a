"""Text files that callbacks append to: one worker writes, the others keep the text.

If the worker that writes dies, the next one has all that was written, and puts it into the file. So
no line is lost, or there twice.
"""

from __future__ import annotations

import io
from typing import Any

import tensorflow as tf

from evener.files.once import Claim, Once


def open_text(once: Once, path: str, mode: str) -> Any:
    """Open a text file of all workers, which may be written to; the mode is ``"w"`` or ``"a"``."""
    if not once.waits:
        return tf.io.gfile.GFile(path, mode) if once.writes_alone else io.StringIO()

    def begin() -> str:
        is_kept = mode == "a" and tf.io.gfile.exists(path)
        with tf.io.gfile.GFile(path, mode) as file:
            # Makes the file.
            file.write("")
        if not is_kept:
            return ""
        with tf.io.gfile.GFile(path, "r") as file:
            return file.read()

    claim = once.claim("a text file", path)
    before = once.finish("the start of a text file", claim, begin)
    return SharedText(once, path, claim, before)


class SharedText(io.TextIOBase):
    """Text file of all workers, open for writing.

    ``before`` is the text that was in the file when it was opened, of a file that is appended to.
    """

    def __init__(self, once: Once, path: str, claim: Claim, before: str) -> None:
        super().__init__()
        self._once = once
        self._path = path
        self._claim = claim
        self._texts = [before]
        self._file: Any = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Append text."""
        self._texts.append(text)
        if self._file is not None:
            self._file.write(text)
        elif self._claim.is_mine:
            self._take()
        return len(text)

    def flush(self) -> None:
        """Give to the file system what this worker has written."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file; when all workers have, it is whole."""
        if self.closed:
            return
        super().close()
        self._once.finish("the end of a text file", self._claim, self._end)

    def _end(self) -> None:
        if self._file is None:
            self._take()
        file: Any = self._file
        file.close()

    def _take(self) -> None:
        """Begin to write the file: what another worker has left of it is replaced."""
        self._file = tf.io.gfile.GFile(self._path, "w")
        self._file.write("".join(self._texts))
