"""A process of its own, bounded in time, whose output is kept apart and which leaves nothing.

here                          there
start ──────────────────────► a session (a process group) of its own
read the last of its output ◄── standard output and error
wait, at most the limit
kill the whole group          also what the program has started and left behind
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

_CHUNK = 65536
_KEPT = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended.

    Args:
        code: Its exit code; negative for a signal; None if the time ran out.
        output: The last of what it wrote, at most 16 KiB.
    """

    code: int | None
    output: str


class _Tail:
    """Reads a stream to its end, and keeps the last of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._stream.fileno(), _CHUNK):
            self._kept = (self._kept + chunk)[-_KEPT:]

    def text(self) -> str:
        """Return what was kept, once the stream has ended."""
        # The group is gone; only a process that left it could hold the stream open.
        self._thread.join(timeout=5)
        return self._kept.decode(errors="replace")


def run_apart(command: Sequence[str], *, environ: Mapping[str, str], limit_seconds: float) -> Ended:
    """Run a command to its end or to the limit, with everything that it starts.

    Args:
        command: The program and its arguments.
        environ: Its environment.
        limit_seconds: How long it may run.
    """
    with subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        tail = _Tail(process.stdout)
        code: int | None = None
        try:
            code = process.wait(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return Ended(code=code, output=tail.text())
