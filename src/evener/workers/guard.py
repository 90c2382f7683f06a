"""Kills process groups when the supervisor is gone, however it ended.

Usage: ``python -I -S guard.py [orphan]``, with a pipe from the supervisor as standard input. It
imports the standard library only: it is run by its path. Lines of the pipe: ``+GROUP`` for a
process group to watch, ``-GROUP`` for a group that has ended. At the end of the pipe, the groups
that are left are killed. Workers die with the supervisor by themselves (`shim`), but not the
processes that they started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def left_groups(lines: Iterable[str]) -> list[int]:
    """Return the groups that lines of the pipe have announced, and that have not ended.

    >>> left_groups(["+7", "+8", "-7"])
    [8]
    """
    groups: dict[int, None] = {}
    for line in lines:
        number = int(line[1:])
        if line.startswith("+"):
            groups[number] = None
        else:
            groups.pop(number, None)
    return list(groups)


class Guard:
    """The supervisor's side: starts the guard, and tells it of groups.

    With ``is_orphan``, the guard is no child of this process, since the children of this process
    may be killed with it, as those of an actor of Ray.
    """

    def __init__(self, *, is_orphan: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__)), *["orphan"] * is_orphan],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Out of reach of signals to the supervisor's group.
            start_new_session=True,
            cwd="/",
        )
        if is_orphan:
            # Its child is the guard.
            self._process.wait()

    def watch(self, group: int) -> None:
        """Have a process group killed if the supervisor dies."""
        self._write(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Leave alone a group that has ended: its number may be used again."""
        self._write(f"-{group}\n")

    def stop(self) -> None:
        """End the guard. Groups that it watches are killed."""
        pipe = self._process.stdin
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()

    def _write(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is not None:
            # A guard that was killed protects nothing, but the job goes on.
            with contextlib.suppress(BrokenPipeError):
                os.write(pipe.fileno(), line.encode())


def main() -> None:
    """Read the pipe to its end, then kill what is left."""
    if "orphan" in sys.argv[1:] and os.fork():
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for group in left_groups(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
