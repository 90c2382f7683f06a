"""Two programs that end processes with the supervisor, however it ends: run by their path.

``python -I -S guard.py watch [orphan]`` kills process groups when the supervisor is gone. Its
standard input is a pipe from it, with lines ``+GROUP`` for a process group to watch, and ``-GROUP``
for a group that has ended. At the end of the pipe, the groups that are left are killed.

``python -I -S guard.py run PARENT PROGRAM [ARGS]...`` runs a command that the kernel kills when its
parent dies. So workers die with the supervisor by themselves, but not the processes that they
started. The parent has to start it in a thread that lives as long as the parent, since the kernel
means the thread.

This file imports the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1


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


def watch(*, is_orphan: bool) -> None:
    if is_orphan and os.fork():
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for group in left_groups(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def run(parent: int, command: list[str]) -> None:
    """Replace this process by the command, a program by its path or its name, and arguments."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the kernel was asked.
        sys.exit(1)
    # Python ignores these, and the program would inherit that.
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(is_orphan="orphan" in sys.argv[2:])
    else:
        run(int(sys.argv[2]), sys.argv[3:])
